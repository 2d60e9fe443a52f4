// The order in which an epoch takes its samples. Shuffling has two levels: it distributes the shards over
// blocks, and shuffles the samples of each block. So an epoch reads lengths and data block by block, needs
// memory for one block, and staging in the background can keep up; still, the samples of a batch come from
// all parts of a block. The order depends on seed and epoch, but not on the number of ranks.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class EpochOrder {
 public:
  /// This many consecutive samples are a shard.
  static constexpr std::size_t kShardSamples = 4096;
  /// This many shards are shuffled together: a block holds 262,144 samples.
  static constexpr std::size_t kBlockShards = 64;

  EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch);

  std::size_t blocks() const { return (shards_.size() + kBlockShards - 1) / kBlockShards; }

  /// The block's shards. A shard's first sample is kShardSamples * shard.
  std::span<const std::uint32_t> shards(std::size_t block) const;

  /// The number of samples in the shard: kShardSamples, or fewer in the last shard of the data.
  std::size_t samples_of_shard(std::uint32_t shard) const;

  /// Brings the block's items, given shard by shard, into the epoch's order.
  void shuffle(std::size_t block, std::span<Item> items) const;

  /// Identifies the order: equal fingerprints mean the same order.
  std::string fingerprint() const;

 private:
  std::size_t samples_;
  Order order_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::vector<std::uint32_t> shards_;  // in the epoch's order
};

}  // namespace lockstep::data
