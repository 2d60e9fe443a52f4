// Where an epoch stands: enough to go on with it in another process, also with another number of ranks, at
// the cost of planning one block again. It names the samples that were carried into the block and, by a bit
// each, those of it that have been used, so that it does not depend on how steps are composed.
//
// Threads: values; safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/data/planner.h"

namespace lockstep::data {

struct PlanState {
  /// Of the data, and of the order of this epoch: must be the same to go on.
  std::string data;
  std::string order;
  /// What the steps were planned for (ranks, accumulate, cap, cost, speeds, ...): may be another from here
  /// on.
  PlanOptions geometry;
  /// The block that is being used.
  std::size_t block = 0;
  /// Samples from earlier blocks that come before the block's own.
  std::vector<SampleId> carried;
  /// A bit for each of the carried and then of the block's samples: used before this geometry began to be
  /// used in this block. Empty: none.
  std::vector<bool> gone;
  /// Micro-batches of each rank that have been used since then.
  std::uint64_t done = 0;
  /// The bits of `gone`, and those of what has been used since. Empty: none.
  std::vector<bool> used;
  /// What was left of the randomness budget when this block began.
  double saved = 0;
  /// Optimizer steps of this epoch before `done` began to count.
  std::uint64_t steps_before = 0;
};

/// A JSON object; from_json throws Error saying what is missing or wrong.
void to_json(nlohmann::json& json, const PlanState& state);
void from_json(const nlohmann::json& json, PlanState& state);

/// Whether two options give the same steps from the same state.
bool same_geometry(const PlanOptions& x, const PlanOptions& y);

}  // namespace lockstep::data
