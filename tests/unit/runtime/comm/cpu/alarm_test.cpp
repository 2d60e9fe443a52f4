#include "runtime/comm/cpu/alarm.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::comm::cpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST(Alarm, WakesAThreadThatWaits) {
  Alarm alarm;
  std::thread waits([&] { alarm.wait(); });
  alarm.set(std::chrono::nanoseconds(0));
  waits.join();
}

TEST(Alarm, RingsAfterItsDelay) {
  Alarm alarm;
  const auto begin = Clock::now();
  alarm.set(milliseconds(20));
  alarm.wait();
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
}

TEST(Alarm, RingsAtTheTimeThatWasSetFirst) {
  Alarm alarm;
  const auto begin = Clock::now();
  alarm.set(milliseconds(20));
  alarm.set(std::chrono::nanoseconds(0));
  alarm.wait();
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
}

TEST(Alarm, RingsNowAlthoughALaterTimeWasSet) {
  Alarm alarm;
  alarm.set(milliseconds(900));
  const auto begin = Clock::now();
  alarm.ring_now();
  alarm.wait();
  EXPECT_LT(Clock::now() - begin, milliseconds(900));
}

TEST(Alarm, CanBeSetAgainAfterItRang) {
  Alarm alarm;
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    alarm.set(milliseconds(5));
    alarm.wait();
    EXPECT_GE(Clock::now() - begin, milliseconds(5));
  }
}

}  // namespace
}  // namespace lockstep::comm::cpu
