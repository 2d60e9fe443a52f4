#include "runtime/ddp/exposed_time.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/median.h"

namespace lockstep::ddp {

TransferCost fit_cost(std::span<const Transfer> transfers) {
  const auto count = static_cast<double>(transfers.size());
  if (transfers.empty()) return {};
  double bytes = 0;
  double time = 0;
  for (const auto& transfer : transfers) {
    bytes += static_cast<double>(transfer.bytes) / count;
    time += static_cast<double>(transfer.ns) / count;
  }
  double covariance = 0;
  double variance = 0;
  for (const auto& transfer : transfers) {
    const double distance = static_cast<double>(transfer.bytes) - bytes;
    covariance += distance * (static_cast<double>(transfer.ns) - time);
    variance += distance * distance;
  }
  if (variance == 0) return {.latency_ns = 0, .ns_per_byte = bytes > 0 ? time / bytes : 0};
  const double slope = std::max(0.0, covariance / variance);
  return {.latency_ns = std::max(0.0, time - slope * bytes), .ns_per_byte = slope};
}

double predict_exposed_ns(const BackwardProfile& backward, const TransferCost& cost,
                          const BucketSizes& sizes) {
  const std::array limits{sizes.first_bytes, sizes.cap_bytes};
  double free_at = 0;  // when the network is free again
  double ready = 0;    // buckets start in order, so a bucket is never earlier than those before it
  for (const auto& bucket : assign_buckets(backward.parameters, backward.order, limits)) {
    std::size_t bytes = 0;
    for (const std::size_t i : bucket) {
      bytes += backward.parameters[i].bytes;
      ready = std::max(ready, static_cast<double>(backward.ready_ns[i]));
    }
    free_at = std::max(free_at, ready) + cost.latency_ns + cost.ns_per_byte * static_cast<double>(bytes);
  }
  return std::max(0.0, free_at - static_cast<double>(backward.length_ns));
}

void BackwardSamples::add(BackwardProfile backward, std::span<const Transfer> transfers) {
  steps_.push_back(std::move(backward));
  transfers_.insert(transfers_.end(), transfers.begin(), transfers.end());
}

BackwardProfile BackwardSamples::typical() const {
  const auto median_ns = [this](const auto& value_of) {
    std::vector<double> values;
    for (const auto& step : steps_) values.push_back(static_cast<double>(value_of(step)));
    return static_cast<std::uint64_t>(median(std::move(values)));
  };
  BackwardProfile typical{.parameters = steps_.front().parameters,
                          .order = {},
                          .ready_ns = {},
                          .length_ns = median_ns([](const BackwardProfile& step) { return step.length_ns; })};
  for (std::size_t i = 0; i < typical.parameters.size(); ++i)
    typical.ready_ns.push_back(median_ns([i](const BackwardProfile& step) { return step.ready_ns[i]; }));
  typical.order.resize(typical.parameters.size());
  std::iota(typical.order.begin(), typical.order.end(), std::size_t{0});
  std::stable_sort(typical.order.begin(), typical.order.end(),
                   [&](std::size_t a, std::size_t b) { return typical.ready_ns[a] < typical.ready_ns[b]; });
  return typical;
}

}  // namespace lockstep::ddp
