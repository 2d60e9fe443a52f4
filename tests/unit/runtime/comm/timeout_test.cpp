#include "runtime/comm/timeout.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

std::uint64_t now_ns = 0;

std::uint64_t now() {
  return now_ns;
}

void pass(std::chrono::nanoseconds time) {
  now_ns += static_cast<std::uint64_t>(time.count());
}

// The time that passes until a thread that sleeps for next_check() has waited long enough.
std::chrono::nanoseconds wait_for_end(OperationTimeout& timeout) {
  const std::uint64_t begin = now_ns;
  while (!timeout.expired()) {
    EXPECT_GT(timeout.next_check(), 0ns);
    EXPECT_LE(timeout.next_check(), 1s);
    pass(timeout.next_check());
  }
  return std::chrono::nanoseconds(now_ns - begin);
}

const std::chrono::nanoseconds kLimits[] = {20ms, 1s, 3s, 600s};

TEST(OperationTimeout, ExpiresWhenItsLimitIsOver) {
  for (const auto limit : kLimits) {
    OperationTimeout timeout(limit, now);
    const auto waited = wait_for_end(timeout);
    EXPECT_GE(waited, limit);
    EXPECT_LE(waited, limit + 1ms);
  }
}

TEST(OperationTimeout, DoesNotCountTheTimeOfASuspendedJob) {
  for (const auto limit : kLimits) {
    OperationTimeout timeout(limit, now);
    pass(limit / 4);
    EXPECT_FALSE(timeout.expired());
    pass(24h);
    EXPECT_FALSE(timeout.expired());
    EXPECT_GE(wait_for_end(timeout), limit / 4);
  }
}

TEST(OperationTimeout, BeginsAgainAfterProgress) {
  OperationTimeout timeout(3s, now);
  wait_for_end(timeout);
  timeout.restart();
  EXPECT_GE(wait_for_end(timeout), 3s);
}

}  // namespace
}  // namespace lockstep::comm
