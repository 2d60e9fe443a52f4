// The phases of steps on a device. The host marks where phases end. The times are known when the device has
// reached the marks, which may be some steps later.
//
// Threads: the training thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "exporters/record/record.h"
#include "runtime/profile/device_clock.h"

namespace lockstep::profile {

/// A step that the device has finished.
struct DeviceStep {
  std::array<std::uint64_t, record::kPhases> phase_ns{};  ///< add up to the step
  std::uint64_t launch_ns = 0;  ///< of the computing phases: those in which the device waited for the host
  std::uint64_t step_ns = 0;
  std::uint64_t ended_ns = 0;  ///< when the host ended it (monotonic_ns())
  record::StepCounts counts;
};

class DevicePhases {
 public:
  /// The first step begins now.
  explicit DevicePhases(std::unique_ptr<DeviceClock> clock);

  /// The device has failed: no more times will be known.
  bool failed() const { return failed_; }

  /// The time since the last call belongs to `phase`.
  void end_phase(record::Phase phase) { end_interval(phase); }
  /// The time since the last call belongs to no phase and to no step.
  void skip() { end_interval(std::nullopt); }
  /// The time since the end of the last step belongs to no step.
  void begin_step();
  /// Call end_phase() before. `host_ns` are the host's times of the phases.
  void end_step(std::uint64_t ended_ns, const record::StepCounts& counts,
                const std::array<std::uint64_t, record::kPhases>& host_ns);

  /// The oldest step that take() has not returned yet; nullopt if the device has not finished it, or has
  /// failed. With `wait`, waits for the device; nullopt if no step is left.
  std::optional<DeviceStep> take(bool wait);

 private:
  struct Interval {
    std::optional<record::Phase> phase;  // none: it does not count
    DeviceClock::Mark end;
  };
  struct Step {
    DeviceClock::Mark begin;
    std::deque<Interval> intervals;                         // from `begin` on
    std::array<std::uint64_t, record::kPhases> phase_ns{};  // of those before it
    std::uint64_t ended_ns = 0;
    record::StepCounts counts;
    std::array<std::uint64_t, record::kPhases> host_ns{};
    bool kept_up = false;  // when the host ended the step, the device was at most one phase behind
  };

  DeviceClock::Mark mark();
  void end_interval(std::optional<record::Phase> phase);
  void count_first_interval(Step& step);

  std::unique_ptr<DeviceClock> clock_;
  bool failed_ = false;
  Step current_;
  std::deque<Step> ended_;
};

}  // namespace lockstep::profile
