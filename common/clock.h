// Monotonic time in nanoseconds, the unit of all measured times; and time limits that a suspended job does not use up.
//
// Threads: safe from any; a RunningTime is one thread's at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace lockstep {

/// CLOCK_MONOTONIC in nanoseconds; about 20 ns a call, no system call (vDSO).
inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

/// Seconds between two readings of monotonic_ns().
inline double seconds_between(std::uint64_t begin_ns, std::uint64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

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
