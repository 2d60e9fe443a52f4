// Wakes a thread now or after a delay. Setting and clearing a timer costs microseconds on a virtual machine, and waking a
// thread a few more. So an alarm that is set stays set, and the thread finds out whether anything is left for it.
//
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>

#include "common/leaf/unique_fd.h"

namespace lockstep::comm::cpu {

class Alarm {
 public:
  /// Throws Error.
  Alarm();

  /// Wakes the thread after `delay`, unless it is set already: then at the time that was set first.
  void set(std::chrono::nanoseconds delay);
  void ring_now();
  /// Returns after the alarm's time. For one thread.
  void wait();

 private:
  void start(std::chrono::nanoseconds delay);

  UniqueFd timer_;
  std::atomic<bool> is_set_{false};
};

}  // namespace lockstep::comm::cpu
