#include "runtime/comm/timeout.h"

#include <algorithm>

#include "common/environment.h"
#include "common/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kMaxStep = std::chrono::seconds(2);
constexpr std::chrono::seconds kMaxLimit{10L * 365 * 24 * 3600};  // counted in nanoseconds of 64 bits

}  // namespace

std::chrono::seconds operation_timeout() {
  static const std::chrono::seconds timeout = [] {
    const long seconds = environment::get_integer("LOCKSTEP_TIMEOUT").value_or(600);
    if (seconds <= 0) fail_usage("LOCKSTEP_TIMEOUT={} must be a number of seconds above 0", seconds);
    return std::min(std::chrono::seconds(seconds), kMaxLimit);
  }();
  return timeout;
}

OperationTimeout::OperationTimeout(std::chrono::duration<double> limit, std::uint64_t (*clock)())
    : clock_(clock),
      limit_(
          std::chrono::duration_cast<nanoseconds>(std::min<std::chrono::duration<double>>(limit, kMaxLimit))),
      max_step_(std::min(kMaxStep, limit_ / 2)),
      last_check_ns_(clock()) {
}

bool OperationTimeout::expired() {
  const std::uint64_t now = clock_();
  waited_ += std::min(nanoseconds(now - last_check_ns_), max_step_);
  last_check_ns_ = now;
  return waited_ >= limit_;
}

nanoseconds OperationTimeout::next_check() const {
  const nanoseconds shortest = std::chrono::milliseconds(1);
  return std::clamp(limit_ - waited_, shortest, std::max(shortest, max_step_ / 2));
}

int OperationTimeout::next_check_ms() const {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(next_check()).count());
}

void OperationTimeout::restart() {
  waited_ = {};
  last_check_ns_ = clock_();
}

}  // namespace lockstep::comm
