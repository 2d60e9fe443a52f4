#include "common/pending_calls.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

namespace lockstep {
namespace {

constexpr int kLooks = 20;

/// This process records its own calls. Time passes with each look.
class PendingCallsTest : public ::testing::Test {
 protected:
  PendingCallsTest() { calls_.record_here(); }

  /// Looks until a call is overdue, for at most `timeouts`.
  std::optional<PendingCalls::Overdue> look_for(int timeouts) {
    for (int n = 0; n <= timeouts * kLooks + 1; ++n) {
      if (const auto overdue = calls_.look(kLooks)) return overdue;
    }
    return {};
  }

  PendingCalls calls_;
};

TEST_F(PendingCallsTest, ACallThatDoesNotReturnIsNamed) {
  EXPECT_FALSE(look_for(10));
  const PendingCall call("/a");
  const auto overdue = look_for(1);
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->path, "/a");
  EXPECT_EQ(overdue->times, 1);
}

TEST_F(PendingCallsTest, ManyShortCallsAreNotALongOne) {
  for (int n = 0; n < 10 * kLooks; ++n) {
    const PendingCall call("/a");
    EXPECT_FALSE(calls_.look(kLooks));
  }
}

TEST_F(PendingCallsTest, ACallThatWritesOutMayTakeSixTimesAsLong) {
  const PendingCall call("/a", true);
  EXPECT_FALSE(look_for(5));
  const auto overdue = look_for(2);
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->times, 6);
}

TEST_F(PendingCallsTest, CallsWithinACallCountAsPartOfIt) {
  const PendingCall whole("/whole");
  for (int n = 0; n < kLooks; ++n) {
    const PendingCall part("/whole/part");
    EXPECT_FALSE(calls_.look(kLooks));
  }
  const auto overdue = look_for(1);
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->path, "/whole");
}

TEST_F(PendingCallsTest, CallsOfAForkedProcessAreNotTakenForThoseOfItsParent) {
  { const PendingCall first("/a"); }
  const pid_t child = ::fork();
  if (child == 0) {
    const PendingCall call("/child");
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(look_for(10));
  const PendingCall call("/b");
  EXPECT_TRUE(look_for(1));
}

TEST_F(PendingCallsTest, EachThreadsCallIsSeen) {
  std::optional<PendingCalls::Overdue> overdue;
  std::thread([&] {
    const PendingCall call("/b");
    overdue = look_for(1);
  }).join();
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->path, "/b");
  EXPECT_FALSE(look_for(10));
}

}  // namespace
}  // namespace lockstep
