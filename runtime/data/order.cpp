#include "runtime/data/order.h"

#include <algorithm>
#include <numeric>

#include "runtime/data/random.h"

namespace lockstep::data {

EpochOrder::EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch)
    : samples_(samples), order_(order), seed_(seed), epoch_(epoch) {
  shards_.resize((samples + kShardSamples - 1) / kShardSamples);
  std::iota(shards_.begin(), shards_.end(), std::size_t{0});
  if (order_ == Order::shuffled) Random(seed_, epoch_, 0).shuffle(std::span(shards_));
}

bool EpochOrder::next_group(std::vector<SampleId>& ids) {
  ids.clear();
  const std::size_t group_end = std::min(next_shard_ + kGroupShards, shards_.size());
  if (next_shard_ == group_end) return false;
  Random random(seed_, epoch_, 1 + next_shard_);
  for (; next_shard_ < group_end; ++next_shard_) {
    const std::size_t begin = shards_[next_shard_] * kShardSamples;
    const std::size_t end = std::min(begin + kShardSamples, samples_);
    for (std::size_t id = begin; id < end; ++id) ids.push_back(id);
  }
  if (order_ == Order::shuffled) random.shuffle(std::span(ids));
  return true;
}

}  // namespace lockstep::data
