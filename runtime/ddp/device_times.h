// The times of synchronised backwards on a device, by marks in its queues. The host runs ahead of the device, so a
// backward's marks are read a few backwards later, when the device has most likely passed them; nobody waits for it.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/ddp/lateness.h"
#include "runtime/profile/device_clock.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

/// The clocks of a device's two queues: the calling thread's, and that of the communicator. Null: there is no device.
struct DeviceClocks {
  std::unique_ptr<profile::DeviceClock> computing;
  std::unique_ptr<profile::DeviceClock> communicating;
};

/// Nanoseconds since the backward began.
struct DeviceBackward {
  bool known = false;  ///< the device had passed all marks; otherwise the times are 0
  std::vector<ReductionTimes> reductions;
  std::uint64_t ended_ns = 0;
};

/// The marks around an operation, in the queues of asking and of communicating. A mark is null if the device has failed.
struct DeviceLaunch {
  std::size_t bytes = 0;
  profile::DeviceClock::Mark asked;
  profile::DeviceClock::Mark ended;
};

class DeviceTimes {
 public:
  /// A backward is read this many backwards later.
  static constexpr std::size_t kAge = 3;

  explicit DeviceTimes(DeviceClocks clocks) : clocks_(std::move(clocks)) {}

  // Called in this order in each synchronised backward.
  void begin();
  void launching();
  void launched() { current_.launches.back().ended = clocks_.communicating->mark(); }
  void stage_ended(std::size_t launch) { current_.launches[launch].ended = clocks_.communicating->mark(); }
  void backward_ended() { current_.ended = clocks_.computing->mark(); }
  void finish() { finished_.push_back(std::move(current_)); }

  /// The oldest backward, if kAge later ones have finished, each once.
  std::optional<DeviceBackward> take();

 private:
  using Mark = profile::DeviceClock::Mark;
  struct Marks {
    Mark began;
    Mark ended;
    std::vector<DeviceLaunch> launches;
  };
  bool reached(const Marks& marks) const;

  DeviceClocks clocks_;
  Marks current_;
  std::deque<Marks> finished_;
};

/// Counts operations that the host does not wait for in the record's totals of a collective. A duration has the wait for
/// ranks that began later.
class DeviceCollective {
 public:
  DeviceCollective(DeviceClocks clocks, profile::StepTimer& timer, record::Collective collective)
      : clocks_(std::move(clocks)), timer_(timer), collective_(collective) {}

  /// Around the calls of the operations. end() counts those whose end the device has passed.
  void begin() { asked_ = clocks_.computing->mark(); }
  void end(std::size_t bytes);

 private:
  DeviceClocks clocks_;
  profile::StepTimer& timer_;
  record::Collective collective_;
  profile::DeviceClock::Mark asked_;
  std::deque<DeviceLaunch> running_;
};

}  // namespace lockstep::ddp
