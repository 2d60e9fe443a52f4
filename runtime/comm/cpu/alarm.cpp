#include "runtime/comm/cpu/alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "common/error.h"

namespace lockstep::comm::cpu {

Alarm::Alarm() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (!timer_) fail_errno("cannot make a timer");
}

void Alarm::set(std::chrono::nanoseconds delay) {
  itimerspec time{};
  time.it_value.tv_nsec = std::clamp<long>(delay.count(), 1, 999'999'999);
  ::timerfd_settime(timer_.get(), 0, &time, nullptr);
}

void Alarm::clear() {
  const itimerspec never{};
  ::timerfd_settime(timer_.get(), 0, &never, nullptr);
}

void Alarm::wait() {
  std::uint64_t rang = 0;
  [[maybe_unused]] const ssize_t ended = ::read(timer_.get(), &rang, sizeof rang);
}

}  // namespace lockstep::comm::cpu
