// The order in which an epoch takes its samples. Shuffling has two levels: shards are dealt into blocks, and
// the samples of one block are shuffled together. So an epoch reads lengths and data block after block, needs
// memory for one block, and staging in the background keeps up; yet neighbours in a batch come from all over
// a block. Seeded by seed and epoch, and the same for any number of ranks.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class EpochOrder {
 public:
  /// A run of this many neighbouring samples counts as a shard.
  static constexpr std::size_t kShardSamples = 4096;
  /// Shards that are shuffled together: a block holds 262,144 samples.
  static constexpr std::size_t kBlockShards = 64;

  EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch);

  std::size_t blocks() const { return (shards_.size() + kBlockShards - 1) / kBlockShards; }

  /// The block's shards; a shard's samples are kShardSamples * shard and those that follow.
  std::span<const std::uint32_t> shards(std::size_t block) const;

  /// How many samples the shard has; only the data's last one can be short.
  std::size_t samples_of_shard(std::uint32_t shard) const;

  /// Brings the block's items, which must be as its shards' samples lie, into the epoch's order.
  void shuffle(std::size_t block, std::span<Item> items) const;

  /// Names the order: what has the same name for the same number of samples is the same order.
  std::string fingerprint() const;

 private:
  std::size_t samples_;
  Order order_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::vector<std::uint32_t> shards_;  // in the epoch's order
};

}  // namespace lockstep::data
