#include "runtime/ddp/sync_observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace lockstep::ddp {

void SyncObserver::use_clocks(DeviceClocks clocks) {
  on_device_ = true;
  if (clocks.computing && communicator_.size() > 1)
    device_ = std::make_unique<DeviceTimes>(std::move(clocks));
}

void SyncObserver::begin(std::size_t parameters) {
  if (device_) device_->begin(parameters, measures_order());
  newest_.reset();
  trace_ = {};
  trace_.backward_began_ns = monotonic_ns();
  ready_ns_.assign(parameters, trace_.backward_began_ns);
  times_.clear();
}

void SyncObserver::gradient_ready(std::size_t parameter) {
  ready_ns_[parameter] = monotonic_ns();
  if (device_) device_->gradient_ready(parameter);
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
  if (device_) device_->launching(bytes);
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

void SyncObserver::received(std::span<const DurationRange> compared) {
  if (!on_device_ || compared.empty()) return;
  newest_backward_ = std::move(comparing_.front());
  comparing_.pop_front();
  newest_ = lateness_.compare({.reductions = newest_backward_.reductions,
                               .backward_ended_ns = newest_backward_.ended_ns,
                               .share = {}},
                              compared);
  take_share();
}

void SyncObserver::take_share() {
  if (!newest_) return;
  share_ = newest_->share;
  timer_.add_comm(share_.transfer_ns, share_.wait_ns, share_.late_rank);
  if (!collective_) return;
  // The total is the same in each step.
  std::uint64_t bytes = 0;
  for (const auto& launch : trace_.launches) bytes += launch.bytes;
  timer_.add_collective(*collective_, bytes, share_.transfer_ns);
}

void SyncObserver::finish(std::span<const DurationRange> compared,
                          std::optional<record::Collective> collective) {
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
  newest_ = lateness_.end_step(std::move(reductions), trace_.backward_ended_ns, compared);
  take_share();
}

// Of the backward whose times are newest; without ready times there is none.
BackwardProfile SyncObserver::measured_backward(const std::vector<ParameterSize>& sizes) const {
  if (on_device_) {
    return {.parameters = sizes,
            .order = {},
            .ready_ns = newest_backward_.ready_ns,
            .length_ns = newest_backward_.ended_ns};
  }
  BackwardProfile backward{.parameters = sizes,
                           .order = {},
                           .ready_ns = {},
                           .length_ns = trace_.backward_ended_ns - trace_.backward_began_ns};
  for (const std::uint64_t ready : ready_ns_) backward.ready_ns.push_back(ready - trace_.backward_began_ns);
  return backward;
}

void SyncObserver::add_newest(BackwardSamples& samples, const std::vector<ParameterSize>& sizes) const {
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < std::min(trace_.launches.size(), newest_->reductions.size()); ++i) {
    const auto& times = newest_->reductions[i];
    const std::uint64_t began = std::max({times.asked_ns, times.began_ns, times.all_asked_ns});
    const std::size_t bytes = on_device_ ? newest_backward_.bytes[i] : trace_.launches[i].bytes;
    if (bytes > 0 && times.ended_ns > began)
      transfers.push_back({.bytes = bytes, .ns = times.ended_ns - began});
  }
  BackwardProfile backward = measured_backward(sizes);
  if (!backward.ready_ns.empty()) samples.add(std::move(backward), transfers);
}

void SyncObserver::look_at_order(const std::vector<ParameterSize>& sizes, const BucketSizes& now) {
  if (!newest_) return;
  BackwardSamples& samples = order_check_->samples;
  add_newest(samples, sizes);
  if (!samples.enough()) return;
  BackwardProfile backward = samples.typical();
  // A hook may reduce a bucket within backward, so the time of the last gradient is that without communication.
  backward.length_ns = *std::max_element(backward.ready_ns.begin(), backward.ready_ns.end());
  const TransferCost cost = samples.cost();
  const double best_ms = predict_exposed_ns(backward, cost, now) * 1e-6;
  backward.order = order_check_->order;
  const double now_ms = predict_exposed_ns(backward, cost, now) * 1e-6;
  fmt::print(
      stderr,
      "lockstep: check of the model: buckets in the order of the constructor end {:.1f} ms after backward, in the order of gradients {:.1f} ms: {:.1f} ms of overlap are lost in each step\n",
      now_ms, best_ms, std::max(0.0, now_ms - best_ms));
  order_check_.reset();
}

}  // namespace lockstep::ddp
