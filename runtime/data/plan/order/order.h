// The order in which an epoch takes its samples. Shuffling has two levels: it distributes the shards over
// blocks, and shuffles the samples of each block. So an epoch reads lengths and data block by block, needs
// memory for one block, and staging in the background can keep up; still, the samples of a batch come from
// all parts of a block. The order depends on seed and epoch, but not on the number of ranks.
//
// Threads: const members and functions are safe from any thread.
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

struct BlockSamples {
  /// Indices of items below this are places in the block's shards; indices from here on are places in
  /// `pieces`.
  static constexpr auto kFirstPiece =
      static_cast<std::uint32_t>(EpochOrder::kShardSamples * EpochOrder::kBlockShards);

  std::vector<Item> items;
  std::vector<SampleId> shard_begins;  ///< the first sample of each shard
  std::vector<SampleId> pieces;        ///< of samples that were split, all but their first

  SampleId id_of(std::uint32_t index) const {
    if (index >= kFirstPiece) return pieces[index - kFirstPiece];
    return shard_begins[index / EpochOrder::kShardSamples] + index % EpochOrder::kShardSamples;
  }
};

/// The block's samples with their whole lengths, shard by shard. The order counts from `first_sample` of the
/// source.
BlockSamples read_block(const LengthSource& source, const EpochOrder& order, std::size_t block,
                        std::size_t first_sample = 0);

/// The block's samples in the epoch's order, none over the cap: longer samples are cut, split or (with length
/// 0) skipped as the options say. Throws Error naming a sample that check_sample() refuses.
BlockSamples read_block_for_plan(const LengthSource& source, const EpochOrder& order, std::size_t block,
                                 const PlanOptions& options);

}  // namespace lockstep::data
