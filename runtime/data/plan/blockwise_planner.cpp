#include "runtime/data/plan/blockwise_planner.h"

#include "common/error.h"

namespace lockstep::data {

PlanState BlockwisePlanner::started(const PlannedBlock& block, std::uint64_t micro_batches) {
  if (micro_batches > block.plan.micro_batches_per_rank()) {
    fail_usage("a block of {} micro-batches has no state after {}", block.plan.micro_batches_per_rank(),
               micro_batches);
  }
  PlanState state = block.start;
  state.done = micro_batches;
  state.used = state.gone;
  return state;
}

}  // namespace lockstep::data
