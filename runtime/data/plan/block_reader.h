// Reads the lengths of one block's samples and brings them into the epoch's order. A little at a time, so
// that the next block can be read while one is planned, in time that a thread would wait.
//
// Threads: a BlockReader may be used by several threads, by one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_source.h"
#include "runtime/data/plan/order.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// Throws Error saying that a sample is longer than the cap.
[[noreturn]] void refuse_over_long(SampleId id, std::uint32_t length, std::uint64_t cap);

/// What an epoch takes of a block, beside what is carried into it.
struct BlockSamples {
  /// An item's index below this is its sample's place in the block's shards, as they lie; from here on it is
  /// that of a piece.
  static constexpr auto kPieces =
      static_cast<std::uint32_t>(EpochOrder::kShardSamples * EpochOrder::kBlockShards);

  std::vector<Item> items;             ///< in the epoch's order, all with lengths in 1..cap
  std::vector<SampleId> shard_begins;  ///< the first sample of each shard
  std::vector<SampleId> pieces;        ///< of samples that were split, all but their first
  OverLong over_long;
};

class BlockReader {
 public:
  /// `source` and `order` must outlive the reader.
  BlockReader(const LengthSource& source, const EpochOrder& order, const PlanOptions& options)
      : source_(source),
        order_(order),
        cap_(static_cast<std::uint32_t>(options.cap)),
        too_long_(options.too_long) {}

  /// Begins with a block; what was read of another is forgotten.
  void begin(std::size_t block);

  /// Reads a shard, or brings what was read into order. False, and nothing done, when there is nothing to do.
  /// What goes wrong is thrown by take().
  bool go_on();

  /// Reads what is left of the block (all of it, where it was not begun). Throws Error when a sample is empty
  /// or (unless the options say otherwise) longer than the cap, naming it. The reader has no block then.
  BlockSamples take(std::size_t block);

  /// Memory for the blocks to come.
  void reuse(std::vector<Item> items) { spare_ = std::move(items); }

 private:
  void read_shard();
  void add(SampleId id, std::uint32_t index, std::uint32_t length);

  const LengthSource& source_;
  const EpochOrder& order_;
  std::uint32_t cap_;
  TooLong too_long_;
  std::vector<std::uint32_t> lengths_;  // of a shard
  std::vector<Item> spare_;

  std::optional<std::size_t> block_;
  BlockSamples read_;
  std::vector<Item> pieces_;  // the items of read_.pieces
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace lockstep::data
