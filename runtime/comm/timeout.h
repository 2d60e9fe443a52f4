// Timeouts of the runtime: LOCKSTEP_TIMEOUT (how long an operation may take before the job ends) and shorter ones. All of
// them use this class (tests/lint/clocks.py), because the time for which a job was suspended must not count.
//
// Threads: the function is safe from any; an object belongs to one.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace lockstep::comm {

/// LOCKSTEP_TIMEOUT; 600 s by default. Throws UsageError if it is not a number above 0.
std::chrono::seconds operation_timeout();

/// Measures how long a thread has waited, without the time for which the whole job was suspended (scontrol suspend, a
/// debugger): between two calls of expired(), at most two seconds count, and at most half of a shorter limit.
class OperationTimeout {
 public:
  /// `clock` returns nanoseconds.
  explicit OperationTimeout(std::chrono::duration<double> limit = operation_timeout(),
                            std::uint64_t (*clock)() = monotonic_ns);

  /// Whether the thread has waited for `limit`. Call it as often as next_check() says.
  bool expired();
  /// How long to sleep before the next call of expired(): what is left, at most a second.
  std::chrono::nanoseconds next_check() const;
  /// The same in milliseconds, at least 1: for poll().
  int next_check_ms() const;
  /// Begins again, because what the thread waits for has made progress.
  void restart();

 private:
  std::uint64_t (*clock_)();
  std::chrono::nanoseconds limit_;
  std::chrono::nanoseconds max_step_;  // that counts between two checks
  std::uint64_t last_check_ns_;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace lockstep::comm
