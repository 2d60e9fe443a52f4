// Takes steps from a planner, as a training does that stops now and then.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/data/plan/blockwise_planner.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"

namespace lockstep::data {

constexpr std::uint64_t kAllSteps = std::numeric_limits<std::uint64_t>::max();

/// As a checkpoint keeps it.
inline PlanState through_text(const PlanState& state) {
  return nlohmann::json::parse(nlohmann::json(state).dump()).get<PlanState>();
}

/// What a run has trained on so far, and where it stands.
struct TrainingRun {
  std::map<SampleId, int> uses;
  Nested steps;
  PlanState state;
};

/// Uses up to `max_steps` more steps of the planner.
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
