// Takes steps from a planner like a training that stops and resumes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"

namespace lockstep::data {

constexpr std::uint64_t kAllSteps = std::numeric_limits<std::uint64_t>::max();

/// Converts the state to text and back, as a checkpoint does.
inline PlanState through_text(const PlanState& state) {
  return nlohmann::json::parse(nlohmann::json(state).dump()).get<PlanState>();
}

/// The samples and steps that a run has used, and its state.
struct TrainingRun {
  std::map<SampleId, int> uses;
  Nested steps;
  PlanState state;
};

/// Takes up to `max_steps` steps from the planner.
inline void use(BlockwisePlanner& planner, std::uint64_t max_steps, TrainingRun& run) {
  run.state = planner.state();
  std::uint64_t used = 0;
  for (PlannedBlock block; used < max_steps && planner.next_block(block);) {
    const std::uint64_t steps = std::min<std::uint64_t>(max_steps - used, block.plan.steps());
    for (const auto& [id, times] : uses_of(block.plan, 0, steps)) run.uses[id] += times;
    Nested taken = nested(block.plan);
    taken.resize(steps);
    run.steps.insert(run.steps.end(), taken.begin(), taken.end());
    used += steps;
    run.state = through_text(state_after(block, steps));
  }
}

}  // namespace lockstep::data
