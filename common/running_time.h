// Time limits that a suspended job does not use up.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

/// Measures time in which this process runs. A long gap between two calls means that it was stopped, as in a suspended
/// job: at most one second of it counts.
class RunningTime {
 public:
  /// The time since the last call.
  std::chrono::milliseconds tick() {
    constexpr std::chrono::milliseconds kMaxGap{1000};
    const auto now = std::chrono::steady_clock::now();
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_);
    last_ += passed;
    return std::min(passed, kMaxGap);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
