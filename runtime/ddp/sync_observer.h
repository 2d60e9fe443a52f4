// Observes the synchronised backwards of a model: the times of its buckets, the ranks that are late, the share of
// communication in a step, and the bucket sizes that fit these times. Sums do not depend on it.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "runtime/comm/communicator.h"
#include "runtime/ddp/bucket_size.h"
#include "runtime/ddp/lateness.h"
#include "runtime/ddp/options.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

class SyncObserver {
 public:
  SyncObserver(comm::Communicator& communicator, profile::StepTimer& timer)
      : communicator_(communicator), timer_(timer), lateness_(communicator) {}

  // Called in this order in each synchronised backward.
  void begin(std::size_t parameters);
  void gradient_ready(std::size_t parameter) { ready_ns_[parameter] = monotonic_ns(); }
  void backward_ended() { trace_.backward_ended_ns = monotonic_ns(); }
  void launching(std::size_t bucket, std::span<const std::size_t> parameters, std::size_t bytes);
  /// The first operation of a reduction has ended, and a later stage of it ended now.
  void reduced(std::size_t bucket, const comm::WorkTimes& times) { times_[bucket] = times; }
  void stage_ended(std::size_t bucket) { times_[bucket].ended_ns = monotonic_ns(); }
  /// `compared`: the ranges of what to_compare() gave. `times_known`: reduced() was called for all buckets.
  void finish(std::span<const DurationRange> compared, bool times_known);

  /// Durations of the previous step that the ranks must compare in this one (StepMessage).
  std::vector<std::uint64_t> to_compare() const { return lateness_.to_compare(); }

  /// Called after finish(), on all ranks, with `sizes` if every gradient arrived on this rank. Returns rank 0's choice as
  /// soon as there are enough steps.
  std::optional<BucketSizes> choose_sizes(const std::vector<ParameterSize>& sizes, const BucketSizes& now);
  void forget_sizes() { tuner_.reset(); }

  const SyncTrace& trace() const { return trace_; }
  /// Communication of the newest step whose times are all known (between nodes: the step before the last).
  const CommShare& share() const { return share_; }

 private:
  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  Lateness lateness_;
  SyncTrace trace_;
  CommShare share_;
  std::vector<std::uint64_t> ready_ns_;        // by parameter
  std::vector<comm::WorkTimes> times_;         // by bucket
  std::optional<Lateness::StepTimes> newest_;  // whose times are all known
  std::unique_ptr<BucketTuner> tuner_;
};

}  // namespace lockstep::ddp
