// Reads the lengths of one block's samples.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

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
