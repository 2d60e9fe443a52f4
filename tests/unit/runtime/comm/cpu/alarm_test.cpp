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

TEST(Alarm, RingsAtTheTimeThatWasSetLast) {
  Alarm alarm;
  const auto begin = Clock::now();
  alarm.set(std::chrono::nanoseconds(0));
  alarm.set(milliseconds(20));
  alarm.wait();
  EXPECT_GE(Clock::now() - begin, milliseconds(20));
}

TEST(Alarm, DoesNotRingAfterItWasCleared) {
  Alarm alarm;
  const auto begin = Clock::now();
  alarm.set(milliseconds(10));
  alarm.clear();
  std::thread rings([&] {
    std::this_thread::sleep_for(milliseconds(30));
    alarm.set(std::chrono::nanoseconds(0));
  });
  alarm.wait();
  EXPECT_GE(Clock::now() - begin, milliseconds(30));
  rings.join();
}

}  // namespace
}  // namespace lockstep::comm::cpu
