// What tests do with a run of blocks: count the samples that were used, and carry states as text.
#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "runtime/data/plan/blockwise_planner.h"

namespace lockstep::data {

/// How often each sample was used.
using Seen = std::map<SampleId, int>;

inline void see(const Plan& plan, std::uint64_t micro_batch, Seen& seen) {
  for_each_sample(plan, micro_batch, micro_batch + 1, [&](SampleId id) { ++seen[id]; });
}

/// As a checkpoint keeps it.
inline PlanState through_text(const PlanState& state) {
  return nlohmann::json::parse(nlohmann::json(state).dump()).get<PlanState>();
}

}  // namespace lockstep::data
