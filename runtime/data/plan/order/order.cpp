#include "runtime/data/plan/order/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/error.h"
#include "runtime/data/plan/order/random.h"

namespace lockstep::data {
namespace {

// Raise it whenever the same seed and epoch give another order than before.
constexpr int kOrderVersion = 2;

std::size_t shards_in(std::size_t samples) {
  const std::size_t shards = (samples + EpochOrder::kShardSamples - 1) / EpochOrder::kShardSamples;
  if (samples >= kMaxSamples) fail("an epoch can have at most {} samples, not {}", kMaxSamples - 1, samples);
  return shards;
}

}  // namespace

EpochOrder::EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch)
    : samples_(samples), order_(order), seed_(seed), epoch_(epoch), shards_(shards_in(samples)) {
  std::iota(shards_.begin(), shards_.end(), 0U);
  if (order_ == Order::shuffled) Random(seed_, epoch_, 0).shuffle(std::span(shards_));
}

std::span<const std::uint32_t> EpochOrder::shards(std::size_t block) const {
  const std::size_t first = block * kBlockShards;
  return std::span(shards_).subspan(first, std::min(kBlockShards, shards_.size() - first));
}

std::size_t EpochOrder::samples_of_shard(std::uint32_t shard) const {
  return std::min(kShardSamples, samples_ - shard * kShardSamples);
}

void EpochOrder::shuffle(std::size_t block, std::span<Item> items) const {
  if (order_ == Order::shuffled) Random(seed_, epoch_, 1 + block).shuffle(items);
}

std::string EpochOrder::fingerprint() const {
  return order_ == Order::sequential
             ? fmt::format("order-{}-sequential-{}", kOrderVersion, samples_)
             : fmt::format("order-{}-shuffled-{}-{}-{}", kOrderVersion, samples_, seed_, epoch_);
}

}  // namespace lockstep::data
