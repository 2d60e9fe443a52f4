// What plans optimizer steps block after block: an epoch of one data set (epoch_planner.h), or a mixture of
// several (mixture_planner.h). Whoever uses the steps need not know which.
//
// Threads: a planner belongs to one thread at a time; state_after() may be called from another beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/plan/plan_state.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct PlannedBlock {
  Plan plan;  ///< this block's steps; there may be none, where a step takes more than a block has
  PlanState
      start;  ///< before the first of them; start.done of each rank's micro-batches have been used already
};

/// Calls what(id) for each sample, of all ranks, that is in each rank's micro-batches `begin` to `end` of a
/// plan.
template <typename What>
void for_each_sample(const Plan& plan, std::uint64_t begin, std::uint64_t end, What what) {
  const auto accumulate = static_cast<std::uint64_t>(plan.options().accumulate);
  for (std::uint64_t i = begin; i < end; ++i) {
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      for (const SampleId id : plan.micro_batch(i / accumulate, rank, static_cast<int>(i % accumulate)))
        what(id);
    }
  }
}

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

  /// Where the next block begins: all that it depends on, beside the data and ends_at().
  virtual const PlanState& next_start() const = 0;

  /// The step before which planning ends, where it does not end with the data: a block's length depends on
  /// it.
  virtual std::uint64_t ends_at() const { return 0; }

  /// Goes on from the next_start() of another planner of the same data and options.
  virtual void go_to(const PlanState& start) = 0;

 protected:
  /// The block's start with so many micro-batches done and nothing new used. Throws UsageError where the
  /// block has fewer.
  static PlanState started(const PlannedBlock& block, std::uint64_t micro_batches);
};

}  // namespace lockstep::data
