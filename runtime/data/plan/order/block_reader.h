// Reads the lengths of one block's samples and brings them into the epoch's order.
//
// Threads: a BlockReader may be used by several threads, by one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/plan/order/length_source.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

/// The samples of a block.
struct BlockSamples {
  /// An item's index below this is its sample's place in the block's shards, as they lie; from here on it is
  /// that of a piece.
  static constexpr auto kFirstPiece =
      static_cast<std::uint32_t>(EpochOrder::kShardSamples * EpochOrder::kBlockShards);

  std::vector<Item> items;             ///< in the epoch's order, none over the cap; length 0: skipped
  std::vector<SampleId> shard_begins;  ///< the first sample of each shard
  std::vector<SampleId> pieces;        ///< of samples that were split, all but their first
  OverLong over_long;

  SampleId id_of(std::uint32_t index) const {
    if (index >= kFirstPiece) return pieces[index - kFirstPiece];
    return shard_begins[index / EpochOrder::kShardSamples] + index % EpochOrder::kShardSamples;
  }
};

class BlockReader {
 public:
  /// `source` and `order` must outlive the reader.
  BlockReader(const LengthSource& source, const EpochOrder& order, const PlanOptions& options)
      : source_(source),
        order_(order),
        cap_(static_cast<std::uint32_t>(options.cap)),
        too_long_(options.too_long) {}

  /// Throws Error when a sample is empty or (unless the options say otherwise) longer than the cap, naming
  /// it.
  BlockSamples read(std::size_t block);

 private:
  void read_shard(std::uint32_t shard);
  void add(SampleId id, std::uint32_t index, std::uint32_t length);

  const LengthSource& source_;
  const EpochOrder& order_;
  std::uint32_t cap_;
  TooLong too_long_;
  std::vector<std::uint32_t> lengths_;  // of a shard
  BlockSamples read_;
  std::vector<Item> pieces_;  // the items of read_.pieces
};

}  // namespace lockstep::data
