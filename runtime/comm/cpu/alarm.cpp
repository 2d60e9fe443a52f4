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

void Alarm::start(std::chrono::nanoseconds delay) {
  itimerspec time{};
  time.it_value.tv_nsec = std::clamp<long>(delay.count(), 1, 999'999'999);
  ::timerfd_settime(timer_.get(), 0, &time, nullptr);
}

void Alarm::set(std::chrono::nanoseconds delay) {
  if (!is_set_.exchange(true)) start(delay);
}

void Alarm::ring_now() {
  is_set_ = true;
  start(std::chrono::nanoseconds(1));
}

void Alarm::wait() {
  std::uint64_t rang = 0;
  [[maybe_unused]] const ssize_t ended = ::read(timer_.get(), &rang, sizeof rang);
  is_set_ = false;
}

}  // namespace lockstep::comm::cpu
