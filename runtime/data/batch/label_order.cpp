#include "runtime/data/batch/label_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "runtime/data/plan/order/order.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kEnough = 4096;  // samples
constexpr double kSorted = 0.5;        // the way from chance to certainty

constexpr std::size_t kBlock = EpochOrder::kShardSamples * EpochOrder::kBlockShards;

}  // namespace

LabelOrder::LabelOrder(std::size_t samples) : samples_(samples), looking_(samples > kBlock) {
}

std::optional<std::string> LabelOrder::add(std::span<const std::int64_t> samples,
                                           std::span<const std::int64_t> labels) {
  if (!looking_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (!looking_) return std::nullopt;
  for (std::size_t i = 0; i < samples.size(); ++i) seen_.emplace_back(samples[i], labels[i]);
  if (seen_.size() < kEnough) return std::nullopt;
  looking_ = false;
  auto seen = std::exchange(seen_, {});
  std::sort(seen.begin(), seen.end());

  std::unordered_map<std::int64_t, double> counts;
  for (const auto& [sample, label] : seen) ++counts[label];
  double chance = 0;  // that two samples have the same label
  for (const auto& [label, count] : counts) {
    const double share = count / static_cast<double>(seen.size());
    chance += share * share;
  }
  double pairs = 0;
  double equal = 0;
  for (std::size_t i = 1; i < seen.size(); ++i) {
    if (seen[i].first - seen[i - 1].first > static_cast<std::int64_t>(EpochOrder::kShardSamples)) continue;
    ++pairs;
    equal += seen[i].second == seen[i - 1].second ? 1 : 0;
  }
  if (pairs < kEnough / 4.0 || equal / pairs < chance + kSorted * (1 - chance)) return std::nullopt;
  return fmt::format(
      "the data is sorted by label: of neighbours in the pack {:.0f} % have the same label, of any two samples {:.0f} %. The loader shuffles {} of the {} samples at a time, so its steps see few of the labels: shuffle the data once when you pack it (find … | shuf | lockstep-pack create -)",
      100 * equal / pairs, 100 * chance, kBlock, samples_);
}

}  // namespace lockstep::data
