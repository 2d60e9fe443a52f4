// Plans an epoch block by block, from a source of lengths: a billion samples need no billion-entry plan, only
// memory for one block. What does not fill a step of its block is carried into the next. At any micro-batch
// the epoch's state can be taken, and another planner, for as many ranks or for others, goes on from there.
//
//   EpochPlanner planner(lengths, options);
//   for (PlannedBlock block; planner.next_block(block);) {
//     ... block.plan.steps() ...
//     PlanState state = planner.state_after(block, micro_batches);  // of each rank, of this block
//   }
//   EpochPlanner again(lengths, options, state);
//
// Threads: an EpochPlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/block_planner.h"
#include "runtime/data/plan/block_reader.h"
#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/length_source.h"
#include "runtime/data/plan/order.h"
#include "runtime/data/plan/plan_state.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/step_pipeline.h"

namespace lockstep::data {

class EpochPlanner final : public BlockwisePlanner {
 public:
  /// `source` must outlive the planner. Throws UsageError when an option is wrong.
  EpochPlanner(const LengthSource& source, const PlanOptions& options);

  /// Goes on from a state. With the same geometry the steps are those that would have come; with another one,
  /// what is left of the block is planned anew. Throws Error saying what differs when the state is of other
  /// data or of another order.
  EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state);

  /// Replaces `block` by the next one. False, and no steps, when the epoch is over. Throws Error when a
  /// sample is empty or (unless the options say otherwise) longer than the cap, naming it.
  bool next_block(PlannedBlock& block) override;

  /// Appends the next block's steps to `plan`.
  bool append_block(Plan& plan);

  /// The state when each rank has used so many of the block's micro-batches (those used before the block's
  /// start included).
  PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const override;

  /// Plans the blocks to come with another cost and other speeds.
  void change(const Cost& cost, const std::vector<double>& speeds) override;

  const PlanState& next_start() const override { return start_; }
  void go_to(const PlanState& start) override {
    start_ = start;
    next_block_ = start.block;
  }

  /// At most two threads plan a block together, as many as the CPUs allow unless said otherwise (0). The
  /// steps are the same.
  void use_threads(int threads);

  /// An empty plan of this epoch.
  Plan empty_plan() const;

  std::size_t blocks() const { return order_.blocks(); }
  /// Of the blocks so far.
  const OverLong& over_long() const { return over_long_; }

 private:
  void go_on_from(const PlanState& state);
  std::vector<Item> read_carried();
  void read_block(std::size_t block);
  bool plan_block(Plan& plan);
  SampleId id_of(std::uint32_t index) const;
  std::string order_fingerprint() const;

  const LengthSource& source_;
  PlanOptions options_;
  std::string fingerprint_;
  EpochOrder order_;
  BlockReader reader_;  // of this block or, while it is planned, of the next
  std::unique_ptr<BlockPlanner> planner_;
  int threads_ = 1;
  std::vector<DealtStep> dealt_;  // on their way from one thread to the other
  OverLong over_long_;
  std::size_t next_block_ = 0;
  PlanState start_;                     // of the next block
  std::vector<SampleId> shard_begins_;  // of the block's shards
  std::vector<SampleId> extras_;  // what was carried into the block, and pieces of samples that were split
  std::vector<Item> items_;
  std::size_t carried_ = 0;  // of items_, at the front
};

}  // namespace lockstep::data
