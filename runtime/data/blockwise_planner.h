// What plans optimizer steps block after block: an epoch of one data set (epoch_planner.h), or a mixture of
// several (mixture_planner.h). Whoever uses the steps need not know which.
//
// Threads: a planner belongs to one thread at a time; state_after() may be called from another beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/plan_state.h"
#include "runtime/data/planner.h"

namespace lockstep::data {

struct PlannedBlock {
  Plan plan;  ///< this block's steps; there may be none, where a step takes more than a block has
  PlanState
      start;  ///< before the first of them; start.done of each rank's micro-batches have been used already
};

class BlockwisePlanner {
 public:
  virtual ~BlockwisePlanner() = default;
  BlockwisePlanner() = default;
  BlockwisePlanner(const BlockwisePlanner&) = delete;
  BlockwisePlanner& operator=(const BlockwisePlanner&) = delete;

  /// Replaces `block` by the next one. False, and no steps, behind the last one.
  virtual bool next_block(PlannedBlock& block) = 0;

  /// The state when each rank has used so many of the block's micro-batches (those used before the block's
  /// start included).
  virtual PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const = 0;

  /// Plans the blocks to come with another cost and other speeds.
  virtual void change(const Cost& cost, const std::vector<double>& speeds) = 0;
};

}  // namespace lockstep::data
