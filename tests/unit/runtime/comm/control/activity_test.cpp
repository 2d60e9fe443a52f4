#include "runtime/comm/control/activity.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/clock.h"

namespace lockstep::comm {
namespace {

TEST(Activity, NamesTheOldestOperationThatHasNotEnded) {
  const Activity before = current_activity();
  const auto first = note_asked("all_reduce of bucket 0 (8 bytes)");
  const auto second = note_asked("all_reduce of bucket 1 (8 bytes)");
  note_began(first);
  Activity now = current_activity();
  EXPECT_EQ(now.asked, before.asked + 2);
  EXPECT_EQ(now.ended, before.ended);
  EXPECT_EQ(now.oldest, "all_reduce of bucket 0 (8 bytes)");
  EXPECT_EQ(now.oldest_number, before.asked + 1);
  EXPECT_TRUE(now.oldest_began);
  EXPECT_LE(now.since_ns, monotonic_ns());

  note_ended(first);
  now = current_activity();
  EXPECT_EQ(now.oldest, "all_reduce of bucket 1 (8 bytes)");
  EXPECT_EQ(now.oldest_number, before.asked + 2);
  EXPECT_FALSE(now.oldest_began);
  EXPECT_EQ(now.last_ended, "all_reduce of bucket 0 (8 bytes)");

  note_ended(second);
  now = current_activity();
  EXPECT_EQ(now.oldest, "");
  EXPECT_EQ(now.ended, now.asked);
  EXPECT_EQ(now.last_ended, "all_reduce of bucket 1 (8 bytes)");
}

TEST(Activity, AcceptsEndsInAnyOrder) {
  const auto a = note_asked("a");
  const auto b = note_asked("b");
  const auto c = note_asked("c");
  note_ended(b);
  EXPECT_EQ(current_activity().oldest, "a");
  note_ended(a);
  EXPECT_EQ(current_activity().oldest, "c");
  note_ended(c);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, DistinguishesOperationsOfTheSameName) {
  const std::uint64_t before = current_activity().asked;
  const auto first = note_asked("again");
  const auto second = note_asked("again");
  note_began(first);
  note_ended(first);
  EXPECT_EQ(current_activity().oldest_number, before + 2);
  EXPECT_FALSE(current_activity().oldest_began);
  note_began(second);
  EXPECT_TRUE(current_activity().oldest_began);
  note_ended(second);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, HoldsAnyNumberOfOperations) {
  const std::uint64_t before = current_activity().asked;
  note_ended(note_asked("first"));  // so that the ring does not start at index 0
  std::vector<std::uint64_t> numbers;
  for (int bucket = 0; bucket < 1000; ++bucket) {
    numbers.push_back(note_asked("bucket " + std::to_string(bucket)));
  }
  for (int bucket = 0; bucket < 1000; ++bucket) {
    EXPECT_EQ(current_activity().oldest, "bucket " + std::to_string(bucket));
    note_ended(numbers[static_cast<std::size_t>(bucket)]);
  }
  EXPECT_EQ(current_activity().asked, before + 1001);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, IgnoresAnOperationThatHasEnded) {
  const auto number = note_asked("once");
  note_ended(number);
  const Activity before = current_activity();
  note_began(number);
  note_ended(number);
  EXPECT_EQ(current_activity().ended, before.ended);
}

TEST(Activity, KeepsTheBeginningOfALongName) {
  const std::string name(1000, 'x');
  const auto number = note_asked(name);
  EXPECT_EQ(current_activity().oldest, name.substr(0, 160));
  note_ended(number);
  EXPECT_EQ(current_activity().oldest, "");
}

TEST(Activity, CostsAboutAsMuchAsReadingTheClock) {
  const std::string name = "all_reduce of bucket 3 (26214400 bytes)";
  constexpr int kTimes = 20000;
  double best = 1;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::uint64_t begin = monotonic_ns();
    for (int time = 0; time < kTimes; ++time) {
      const auto number = note_asked(name);
      note_began(number);
      note_ended(number);
    }
    best = std::min(best, seconds_between(begin, monotonic_ns()) / (3.0 * kTimes));
  }
  RecordProperty("ns_per_note", std::to_string(best * 1e9));
  EXPECT_LT(best, 1e-6);  // about 40 ns; sanitizers need more
}

}  // namespace
}  // namespace lockstep::comm
