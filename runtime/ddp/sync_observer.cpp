#include "runtime/ddp/sync_observer.h"

#include <algorithm>

namespace lockstep::ddp {

void SyncObserver::begin(std::size_t parameters) {
  trace_ = {};
  trace_.backward_began_ns = monotonic_ns();
  ready_ns_.assign(parameters, trace_.backward_began_ns);
  times_.clear();
}

void SyncObserver::launching(std::size_t bucket, std::span<const std::size_t> parameters, std::size_t bytes) {
  times_.resize(bucket + 1);
  SyncTrace::Launch& launch = trace_.launches.emplace_back();
  launch.bucket = bucket;
  launch.bytes = bytes;
  for (const std::size_t parameter : parameters)
    launch.ready_ns = std::max(launch.ready_ns, ready_ns_[parameter]);
  launch.asked_ns = monotonic_ns();
}

void SyncObserver::finish(std::span<const DurationRange> compared, bool times_known) {
  trace_.finished_ns = monotonic_ns();
  newest_.reset();
  if (!times_known) return;
  std::vector<ReductionTimes> reductions;
  for (auto& launch : trace_.launches) {
    const comm::WorkTimes& times = times_[launch.bucket];
    launch.all_asked_ns = times.all_asked_ns;
    launch.late_rank = times.late_rank;
    launch.done_ns = times.ended_ns;
    reductions.push_back({.asked_ns = launch.asked_ns,
                          .began_ns = times.began_ns,
                          .all_asked_ns = times.all_asked_ns,
                          .ended_ns = times.ended_ns,
                          .late_rank = times.late_rank});
  }
  newest_ = lateness_.end_step(std::move(reductions), trace_.backward_ended_ns, compared);
  if (!newest_) return;
  share_ = newest_->share;
  timer_.add_comm(share_.transfer_ns, share_.wait_ns, share_.late_rank);
}

std::optional<BucketSizes> SyncObserver::choose_sizes(const std::vector<ParameterSize>& sizes,
                                                      const BucketSizes& now) {
  if (!newest_) return std::nullopt;
  if (!tuner_) {
    tuner_ = std::make_unique<BucketTuner>(communicator_);
    return std::nullopt;
  }
  if (!sizes.empty()) {
    BackwardProfile backward{.parameters = sizes,
                             .order = {},
                             .ready_ns = {},
                             .length_ns = trace_.backward_ended_ns - trace_.backward_began_ns};
    for (const std::uint64_t ready : ready_ns_) backward.ready_ns.push_back(ready - trace_.backward_began_ns);
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < std::min(trace_.launches.size(), newest_->reductions.size()); ++i) {
      const auto& times = newest_->reductions[i];
      const std::uint64_t began = std::max({times.asked_ns, times.began_ns, times.all_asked_ns});
      const std::size_t bytes = trace_.launches[i].bytes;
      if (bytes > 0 && times.ended_ns > began)
        transfers.push_back({.bytes = bytes, .ns = times.ended_ns - began});
    }
    tuner_->add(std::move(backward), transfers);
  }
  return tuner_->agree(now);
}

}  // namespace lockstep::ddp
