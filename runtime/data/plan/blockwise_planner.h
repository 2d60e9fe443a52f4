// Plans optimizer steps block after block: an epoch of one data set (epoch_planner.h), or a mixture of
// several (mixture/mixture_planner.h).
//
// Threads: a planner belongs to one thread at a time; a PlannedBlock is a value.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/data/plan/plan.h"
#include "runtime/data/plan/plan_state.h"

namespace lockstep::data {

struct PlannedBlock {
  Plan plan;                        ///< this block's steps, at least one
  PlanState start;                  ///< before the first of them
  std::vector<PlanPosition> after;  ///< where each of them ends
};

/// The state after the block's first `steps` steps. Throws UsageError where it has fewer.
PlanState state_after(const PlannedBlock& block, std::size_t steps);

class BlockwisePlanner {
 public:
  virtual ~BlockwisePlanner() = default;
  BlockwisePlanner() = default;
  BlockwisePlanner(const BlockwisePlanner&) = delete;
  BlockwisePlanner& operator=(const BlockwisePlanner&) = delete;

  /// Replaces `block` by the next one. False, and no steps, after the last one.
  virtual bool next_block(PlannedBlock& block) = 0;

  /// Where the next block begins.
  virtual const PlanState& state() const = 0;

  /// Plans the blocks to come with another cost and other speeds.
  virtual void change(const Cost& cost, const std::vector<double>& speeds) = 0;
};

}  // namespace lockstep::data
