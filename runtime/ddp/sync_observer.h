// Observes the synchronised backwards of a model: the times of its buckets, the ranks that are late, and the share
// of communication in a step. Sums do not depend on it.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "runtime/comm/communicator.h"
#include "runtime/ddp/device_times.h"
#include "runtime/ddp/lateness.h"
#include "runtime/ddp/options.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

class SyncObserver {
 public:
  SyncObserver(comm::Communicator& communicator, profile::StepTimer& timer)
      : communicator_(communicator), timer_(timer), lateness_(communicator) {}

  /// The model is on a device, where the host does not know when a reduction ends. Without clocks nothing is measured there.
  void use_clocks(DeviceClocks clocks);

  // Called in this order in each synchronised backward.
  void begin(std::size_t parameters);
  void gradient_ready(std::size_t parameter);
  void backward_ended();
  void launching(std::size_t bucket, std::span<const std::size_t> parameters, std::size_t bytes);
  void launched();
  /// The first operation of a reduction has ended, and a later stage of it ended now.
  void reduced(std::size_t bucket, const comm::WorkTimes& times) { times_[bucket] = times; }
  void stage_ended(std::size_t bucket);
  /// The ranges of what to_compare() gave when the message that was received now was sent: this backward's, on a device that
  /// of an earlier one.
  void received(std::vector<DurationRange> compared);
  /// `collective`: the kind of all operations, if they have one.
  void finish(std::optional<record::Collective> collective);

  /// Durations of the previous step, on a device of an earlier one, that the ranks must compare in this one (StepMessage).
  /// Called once in each.
  std::vector<std::uint64_t> to_compare();

  const SyncTrace& trace() const { return trace_; }
  /// Communication of the newest step whose times are all known (between nodes: the step before the last).
  const CommShare& share() const { return share_; }

 private:
  void take_share(const std::optional<Lateness::StepTimes>& newest);

  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  Lateness lateness_;
  SyncTrace trace_;
  CommShare share_;
  std::vector<std::uint64_t> ready_ns_;  // by parameter
  std::vector<comm::WorkTimes> times_;   // by bucket
  std::vector<DurationRange> compared_;  // on the CPU
  std::unique_ptr<DeviceTimes> device_;
  bool on_device_ = false;
  bool measured_latency_ = false;
  std::optional<record::Collective> collective_;
  std::deque<DeviceBackward> comparing_;  // whose durations are on their way
};

}  // namespace lockstep::ddp
