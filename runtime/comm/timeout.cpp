#include "runtime/comm/timeout.h"

#include <algorithm>

#include "common/environment.h"
#include "common/error.h"

namespace lockstep::comm {

std::chrono::seconds operation_timeout() {
  static const std::chrono::seconds timeout = [] {
    const long seconds = environment::get_integer("LOCKSTEP_TIMEOUT").value_or(600);
    if (seconds <= 0) fail_usage("LOCKSTEP_TIMEOUT={} must be a number of seconds above 0", seconds);
    constexpr long kMax = 10L * 365 * 24 * 3600;  // waited_ counts nanoseconds in 64 bits
    return std::chrono::seconds(std::min(seconds, kMax));
  }();
  return timeout;
}

bool OperationTimeout::expired() {
  const auto now = std::chrono::steady_clock::now();
  waited_ += std::min<std::chrono::steady_clock::duration>(now - last_check_, kMaxStep);
  last_check_ = now;
  return waited_ >= operation_timeout();
}

std::chrono::steady_clock::duration OperationTimeout::next_check() const {
  return std::clamp<std::chrono::steady_clock::duration>(
      operation_timeout() - waited_, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

}  // namespace lockstep::comm
