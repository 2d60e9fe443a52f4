// Monotonic time in nanoseconds, the unit of all measured times.
//
// Threads: safe from any.
#pragma once

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

}  // namespace lockstep
