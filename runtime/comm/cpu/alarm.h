// Wakes a thread now or after a delay. Waking costs the waker a few microseconds, and more if both share a CPU, so a
// waker that will probably do the work itself sets a delay and takes the alarm back.
//
// Threads: any.
#pragma once

#include <chrono>

#include "common/leaf/unique_fd.h"

namespace lockstep::comm::cpu {

class Alarm {
 public:
  /// Throws Error.
  Alarm();

  /// Replaces a time that was set before.
  void set(std::chrono::nanoseconds delay);
  void clear();
  /// Returns after the alarm's time. For one thread.
  void wait();

 private:
  UniqueFd timer_;
};

}  // namespace lockstep::comm::cpu
