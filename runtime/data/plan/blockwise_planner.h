// The interface of the planners, which plan optimizer steps block by block: an epoch of one data set
// (epoch_planner.h), or a mixture of several (mixture/mixture_planner.h).
//
// Threads: a planner belongs to one thread at a time; a PlannedBlock is a value.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/data/plan/order/length_source.h"
#include "runtime/data/plan/plan.h"
#include "runtime/data/plan/plan_state.h"

namespace lockstep::data {

class StepPacker;

struct PlannedBlock {
  Plan plan;                        ///< the steps of this block, at least one
  PlanState start;                  ///< the state before its first step
  std::vector<PlanPosition> after;  ///< the position after each step
};

/// The state after the first `steps` steps of the block. Throws UsageError if the block has fewer.
PlanState state_after(const PlannedBlock& block, std::size_t steps);

class BlockwisePlanner {
 public:
  virtual ~BlockwisePlanner();
  BlockwisePlanner(const BlockwisePlanner&) = delete;
  BlockwisePlanner& operator=(const BlockwisePlanner&) = delete;

  /// Replaces `block` by the next one. Returns false, and a block without steps, after the last one.
  virtual bool next_block(PlannedBlock& block) = 0;

  /// The state before the next block.
  const PlanState& state() const { return state_; }

  /// Plans the following blocks with another cost and other speeds. Throws UsageError if one is wrong.
  virtual void change(const Cost& cost, const std::vector<double>& speeds);

 protected:
  /// `source` must outlive the planner. Throws UsageError if an option is wrong.
  BlockwisePlanner(const LengthSource& source, const PlanOptions& options);

  /// Throws Error if the state belongs to other data or to another order. `order_options` says in the message
  /// which options determine the order.
  void expect_same_order(const PlanState& state, const char* order_options) const;

  const LengthSource& source_;
  PlanOptions options_;
  std::unique_ptr<StepPacker> packer_;
  PlanState state_;  // after the steps planned so far
};

}  // namespace lockstep::data
