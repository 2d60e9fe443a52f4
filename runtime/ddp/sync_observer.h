// Observes the synchronised backwards of a model: the times of its buckets, the ranks that are late, the share of
// communication in a step, and what an unfavourable order of the buckets costs. Sums do not depend on it.
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
#include "runtime/ddp/exposed_time.h"
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
  /// On a device: the ranges of what to_compare() gave when the message that was received now was sent.
  void received(std::span<const DurationRange> compared);
  /// `compared`: the ranges of what to_compare() gave. `collective`: the kind of all
  /// operations, if they have one.
  void finish(std::span<const DurationRange> compared, std::optional<record::Collective> collective);

  /// Durations of the previous step, on a device of an earlier one, that the ranks must compare in this one (StepMessage).
  /// Called once in each.
  std::vector<std::uint64_t> to_compare();

  /// The parameters are others now.
  void forget_parameters() { order_check_.reset(); }

  /// From now on look_at_order() measures what it costs that buckets have the parameters in this order.
  void measure_order(std::vector<std::size_t> order) {
    order_check_ = OrderCheck{.order = std::move(order), .samples = {}};
  }
  /// Called after finish() while measures_order(). Prints the cost once, as soon as there are enough steps.
  void look_at_order(const std::vector<ParameterSize>& sizes, const BucketSizes& now);
  bool measures_order() const { return order_check_.has_value(); }

  const SyncTrace& trace() const { return trace_; }
  /// Communication of the newest step whose times are all known (between nodes: the step before the last).
  const CommShare& share() const { return share_; }

 private:
  void take_share();
  BackwardProfile measured_backward(const std::vector<ParameterSize>& sizes) const;
  void add_newest(BackwardSamples& samples, const std::vector<ParameterSize>& sizes) const;

  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  Lateness lateness_;
  SyncTrace trace_;
  CommShare share_;
  std::vector<std::uint64_t> ready_ns_;        // by parameter
  std::vector<comm::WorkTimes> times_;         // by bucket
  std::optional<Lateness::StepTimes> newest_;  // whose times are all known
  struct OrderCheck {
    std::vector<std::size_t> order;  // of the parameters in the buckets
    BackwardSamples samples;
  };
  std::optional<OrderCheck> order_check_;  // while it is measured
  std::unique_ptr<DeviceTimes> device_;
  bool on_device_ = false;
  bool measured_latency_ = false;
  std::optional<record::Collective> collective_;
  std::deque<DeviceBackward> comparing_;  // whose durations are on their way
  DeviceBackward newest_backward_;        // of newest_
};

}  // namespace lockstep::ddp
