// Plans an epoch block by block, from a source of lengths: a billion samples need no billion-entry plan, only
// memory for some blocks. Between any two steps the epoch's state can be taken, and another planner, for as
// many ranks or for others, goes on from there.
//
//   EpochPlanner planner(lengths, options);
//   for (PlannedBlock block; planner.next_block(block);) {
//     ... block.plan.steps() ...
//     PlanState state = state_after(block, steps);  // of this block
//   }
//   EpochPlanner again(lengths, options, state);
//
// Threads: an EpochPlanner belongs to one thread at a time. It reads the next block on a thread of its own
// while it plans one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/order/block_reader.h"
#include "runtime/data/plan/order/length_source.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {

class EpochPlanner final : public BlockwisePlanner {
 public:
  /// `source` must outlive the planner. Throws UsageError when an option is wrong.
  EpochPlanner(const LengthSource& source, const PlanOptions& options);

  /// Goes on from a state. With the same options the steps are those that would have come. Throws Error
  /// saying what differs when the state is of other data or of another order.
  EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state);

  /// Throws Error when a sample is empty or (unless the options say otherwise) longer than the cap, naming
  /// it.
  bool next_block(PlannedBlock& block) override;

  void change(const Cost& cost, const std::vector<double>& speeds) override;
  const PlanState& state() const override { return state_; }

  std::size_t blocks() const { return order_.blocks(); }
  /// Of the blocks so far.
  const OverLong& over_long() const { return over_long_; }

 private:
  void load_next_block();
  bool complete_last_step();
  PlanPosition position_at(std::size_t place) const;
  void drop_used(std::size_t place);
  SampleId id_of(std::uint32_t index) const {
    return index < first_index_ ? ids_[index] : block_.id_of(index - first_index_);
  }
  std::string order_fingerprint() const;

  // A run of neighbours in the pool that come from one block.
  struct Run {
    std::uint64_t block;
    std::size_t begin;   // in the pool
    std::uint64_t used;  // items of the block before the run
  };

  const LengthSource& source_;
  PlanOptions options_;
  EpochOrder order_;
  BlockReader reader_;
  StepPacker packer_;
  std::future<BlockSamples> next_;  // the block after the last one loaded
  std::size_t next_block_ = 0;
  PlanState state_;  // after the steps planned so far
  OverLong over_long_;

  // Samples that are in no step yet, in the epoch's order: what is left of earlier blocks, then the last one
  // loaded.
  std::vector<Item> pool_;
  std::vector<Run> runs_;
  std::vector<SampleId> ids_;      // of the indices below first_index_, those of earlier blocks
  std::uint32_t first_index_ = 0;  // of the last block's samples
  BlockSamples block_;             // the last one loaded; its items are in the pool
};

}  // namespace lockstep::data
