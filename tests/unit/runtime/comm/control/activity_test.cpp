#include "runtime/comm/control/activity.h"

#include <gtest/gtest.h>

#include "common/clock.h"

namespace lockstep::comm {
namespace {

TEST(Activity, NamesTheOldestOperationThatHasNotEnded) {
  const Activity before = current_activity();
  note_asked("all_reduce of bucket 0 (8 bytes)");
  note_asked("all_reduce of bucket 1 (8 bytes)");
  note_began("all_reduce of bucket 0 (8 bytes)");
  Activity now = current_activity();
  EXPECT_EQ(now.asked, before.asked + 2);
  EXPECT_EQ(now.ended, before.ended);
  EXPECT_EQ(now.oldest, "all_reduce of bucket 0 (8 bytes)");
  EXPECT_EQ(now.oldest_number, before.asked + 1);
  EXPECT_TRUE(now.oldest_began);
  EXPECT_LE(now.since_ns, monotonic_ns());

  note_ended("all_reduce of bucket 0 (8 bytes)");
  now = current_activity();
  EXPECT_EQ(now.oldest, "all_reduce of bucket 1 (8 bytes)");
  EXPECT_EQ(now.oldest_number, before.asked + 2);
  EXPECT_FALSE(now.oldest_began);
  EXPECT_EQ(now.last_ended, "all_reduce of bucket 0 (8 bytes)");

  note_ended("all_reduce of bucket 1 (8 bytes)");
  now = current_activity();
  EXPECT_EQ(now.oldest, "");
  EXPECT_EQ(now.ended, now.asked);
  EXPECT_EQ(now.last_ended, "all_reduce of bucket 1 (8 bytes)");
}

TEST(Activity, AcceptsEndsInAnyOrder) {
  note_asked("a");
  note_asked("b");
  note_asked("c");
  note_ended("b");
  EXPECT_EQ(current_activity().oldest, "a");
  note_ended("a");
  EXPECT_EQ(current_activity().oldest, "c");
  note_ended("c");
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, DistinguishesOperationsOfTheSameName) {
  const std::uint64_t before = current_activity().asked;
  note_asked("again");
  note_asked("again");
  note_began("again");
  note_ended("again");
  EXPECT_EQ(current_activity().oldest_number, before + 2);
  EXPECT_FALSE(current_activity().oldest_began);
  note_began("again");
  EXPECT_TRUE(current_activity().oldest_began);
  note_ended("again");
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, HoldsAnyNumberOfOperations) {
  const std::uint64_t before = current_activity().asked;
  note_asked("first");
  note_ended("first");  // so that the ring does not start at index 0
  for (int bucket = 0; bucket < 1000; ++bucket) note_asked("bucket " + std::to_string(bucket));
  for (int bucket = 0; bucket < 1000; ++bucket) {
    EXPECT_EQ(current_activity().oldest, "bucket " + std::to_string(bucket));
    note_ended("bucket " + std::to_string(bucket));
  }
  EXPECT_EQ(current_activity().asked, before + 1001);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, KeepsTheBeginningOfALongName) {
  const std::string name(1000, 'x');
  note_asked(name);
  EXPECT_EQ(current_activity().oldest, name.substr(0, 160));
  note_ended(name);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, CostsAboutAsMuchAsReadingTheClock) {
  const std::string name = "all_reduce of bucket 3 (26214400 bytes)";
  constexpr int kTimes = 20000;
  double best = 1;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::uint64_t begin = monotonic_ns();
    for (int time = 0; time < kTimes; ++time) {
      note_asked(name);
      note_began(name);
      note_ended(name);
    }
    best = std::min(best, seconds_between(begin, monotonic_ns()) / (3.0 * kTimes));
  }
  RecordProperty("ns_per_note", std::to_string(best * 1e9));
  EXPECT_LT(best, 1e-6);  // about 40 ns; sanitizers need more
}

}  // namespace
}  // namespace lockstep::comm
