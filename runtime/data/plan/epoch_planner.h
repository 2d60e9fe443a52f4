// Plans an epoch block by block, so that even a billion samples need memory for a few blocks only. The
// state of the epoch can be saved between any two steps; another planner continues from it, on the
// same number of ranks or another one.
//
//   EpochPlanner planner(lengths, options);
//   for (PlannedBlock block; planner.next_block(block);) {
//     ... block.plan.steps() ...
//     PlanState state = state_after(block, steps);  // `steps` of this block are done
//   }
//   EpochPlanner resumed(lengths, options, state);
//
// Threads: an EpochPlanner belongs to one thread at a time. While it plans a block, another thread reads
// the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/order/block_reader.h"

namespace lockstep::data {

class EpochPlanner : public BlockwisePlanner {
 public:
  /// `source` must outlive the planner. Throws UsageError if an option is wrong.
  EpochPlanner(const LengthSource& source, const PlanOptions& options);

  /// Continues from a state. With the same options it plans the steps that would have followed. Throws Error
  /// that says what differs if the state belongs to other data or to another order.
  EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state);

  /// Throws Error naming a sample that is empty or (if too_long is refuse) longer than the cap.
  bool next_block(PlannedBlock& block) override;

 private:
  void load_next_block();
  bool complete_last_step();
  PlanPosition position_at(std::size_t place) const;
  void drop_used(std::size_t place);
  void use_ahead(std::size_t place);
  SampleId id_of(std::uint32_t index) const {
    return index < first_index_ ? ids_[index] : block_.id_of(index - first_index_);
  }
  std::string order_fingerprint() const;

  EpochOrder order_;
  std::future<BlockSamples> next_;  // the block after the last one loaded
  std::size_t next_block_ = 0;

  // The samples that are in no step yet, in the epoch's order: the rest of earlier blocks, then the last
  // block loaded.
  std::vector<Item> pool_;
  std::uint64_t dropped_ = 0;                // items that left the pool
  std::vector<std::uint64_t> ahead_;         // items of the pool that are used already, counted like dropped_
  std::vector<std::uint64_t> block_begins_;  // of the blocks loaded so far, counted like dropped_
  std::vector<SampleId> ids_;                // of indices below first_index_: samples of earlier blocks
  std::uint32_t first_index_ = 0;            // of the last block's samples
  BlockSamples block_;                       // the last block loaded; its items are in the pool
};

}  // namespace lockstep::data
