#include "runtime/ddp/sync_observer.h"

#include <algorithm>
#include <utility>

namespace lockstep::ddp {

void SyncObserver::use_clocks(DeviceClocks clocks) {
  on_device_ = true;
  if (clocks.computing && communicator_.size() > 1)
    device_ = std::make_unique<DeviceTimes>(std::move(clocks));
}

void SyncObserver::begin(std::size_t parameters) {
  if (device_) device_->begin();
  trace_ = {};
  trace_.backward_began_ns = monotonic_ns();
  ready_ns_.assign(parameters, trace_.backward_began_ns);
  times_.clear();
}

void SyncObserver::gradient_ready(std::size_t parameter) {
  ready_ns_[parameter] = monotonic_ns();
}

void SyncObserver::backward_ended() {
  trace_.backward_ended_ns = monotonic_ns();
  if (device_) device_->backward_ended();
}

void SyncObserver::launched() {
  if (device_) device_->launched();
}

void SyncObserver::stage_ended(std::size_t bucket) {
  times_[bucket].ended_ns = monotonic_ns();
  if (device_) device_->stage_ended(bucket);
}

void SyncObserver::launching(std::size_t bucket, std::span<const std::size_t> parameters, std::size_t bytes) {
  times_.resize(bucket + 1);
  SyncTrace::Launch& launch = trace_.launches.emplace_back();
  launch.bucket = bucket;
  launch.bytes = bytes;
  for (const std::size_t parameter : parameters)
    launch.ready_ns = std::max(launch.ready_ns, ready_ns_[parameter]);
  launch.asked_ns = monotonic_ns();
  if (device_) device_->launching();
}

std::vector<std::uint64_t> SyncObserver::to_compare() {
  if (!on_device_) return lateness_.to_compare();
  auto backward = device_ ? device_->take() : std::nullopt;
  if (!backward || backward->reductions.empty()) return {};
  std::vector<std::uint64_t> durations(backward->reductions.size(), kUnknownDuration);
  if (backward->known) durations = durations_of(backward->reductions);
  comparing_.push_back(std::move(*backward));
  return durations;
}

void SyncObserver::received(std::vector<DurationRange> compared) {
  if (!on_device_) compared_ = std::move(compared);
  if (!on_device_ || compared.empty()) return;
  DeviceBackward backward = std::move(comparing_.front());
  comparing_.pop_front();
  take_share(lateness_.compare(
      {.reductions = std::move(backward.reductions), .backward_ended_ns = backward.ended_ns, .share = {}},
      compared));
}

// Of the newest step whose times are all known.
void SyncObserver::take_share(const std::optional<Lateness::StepTimes>& newest) {
  if (!newest) return;
  share_ = newest->share;
  timer_.add_comm(share_.transfer_ns, share_.wait_ns, share_.late_rank);
  if (!collective_) return;
  // The total is the same in each step.
  std::uint64_t bytes = 0;
  for (const auto& launch : trace_.launches) bytes += launch.bytes;
  timer_.add_collective(*collective_, bytes, share_.transfer_ns);
}

void SyncObserver::finish(std::optional<record::Collective> collective) {
  collective_ = collective;
  trace_.finished_ns = monotonic_ns();
  if (on_device_) {
    if (!device_) return;
    device_->finish();
    if (!std::exchange(measured_latency_, true)) lateness_.measure();
    return;
  }
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
  take_share(lateness_.end_step(std::move(reductions), trace_.backward_ended_ns, compared_));
}

}  // namespace lockstep::ddp
