#include <utility>

#include "common/error.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {

PlanState state_after(const PlannedBlock& block, std::size_t steps) {
  if (steps > block.after.size()) {
    fail_usage("a block of {} steps has no state after {} steps", block.after.size(), steps);
  }
  PlanState state = block.start;
  if (steps > 0) state.position = block.after[steps - 1];
  state.steps += steps;
  return state;
}

BlockwisePlanner::BlockwisePlanner(const LengthSource& source, const PlanOptions& options)
    : source_(source), options_(options) {
  check_options(options);
  packer_ = std::make_unique<StepPacker>(options);
  state_.data = source.fingerprint();
}

BlockwisePlanner::~BlockwisePlanner() = default;

void BlockwisePlanner::expect_same_order(const PlanState& state, const char* order_options) const {
  if (state.data != state_.data) {
    fail("cannot resume: the state belongs to other data ({}) than this run ({})", state.data, state_.data);
  }
  if (state.order != state_.order) {
    fail(
        "cannot resume: the state belongs to another order of samples ({}) than this run ({}): use the same {}",
        state.order, state_.order, order_options);
  }
}

}  // namespace lockstep::data
