// LOCKSTEP_TIMEOUT: how long an operation may take before the job ends.
//
// Threads: the function is safe from any; an object belongs to one.
#pragma once

#include <chrono>

namespace lockstep::comm {

/// LOCKSTEP_TIMEOUT; 600 s by default. Throws UsageError if it is not a number above 0.
std::chrono::seconds operation_timeout();

/// Measures how long a thread has waited for an operation, without the time for which the whole job was
/// suspended (scontrol suspend, a debugger): at most two seconds count between two calls of expired().
class OperationTimeout {
 public:
  /// Whether the thread has waited for operation_timeout(). Call it at least every second.
  bool expired();
  /// How long to sleep before the next call of expired(): what is left, at most a second.
  std::chrono::steady_clock::duration next_check() const;

 private:
  static constexpr std::chrono::seconds kMaxStep{2};
  std::chrono::steady_clock::time_point last_check_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited_{0};
};

}  // namespace lockstep::comm
