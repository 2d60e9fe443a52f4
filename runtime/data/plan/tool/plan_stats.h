// What a plan is like: computed from the finished plan and the lengths alone, so that it holds for a plan
// from anywhere and does not repeat the planner's mistakes.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// The last step of an epoch, which takes what is left, counts for the first four members and not for those
/// below them (it does where it is the only one). An epoch without samples has no steps, fill 0 and
/// imbalance 1. All steps of a mixture are full, and count; each of its data sets' epochs counts for dropped
/// and duplicated, and steps are compared with random draws from what their range uses.
struct PlanStats {
  std::size_t steps = 0;
  /// Tokens / those of a full step, rounded up. A full step has ranks x accumulate x cap tokens, or
  /// `step_tokens` where the options give it.
  std::size_t minimum_steps = 0;
  /// Samples that are in no step, and appearances beyond a sample's first; each piece of one that was split
  /// counts.
  std::size_t dropped = 0;
  std::size_t duplicated = 0;
  /// Tokens / (micro-batches x cap).
  double fill = 0;
  /// Padding tokens / (tokens + padding tokens); 0 unless padded.
  double padding = 0;
  /// Mean over steps of the greatest rank's tokens (without padding) / the ranks' mean.
  double imbalance_tokens = 1;
  /// The same of the cost: a*L + b*L*L summed over a rank's samples; rows x that of the longest when padded.
  /// With speeds, of the ranks' times: the longest / what all take when the cost is dealt as the speeds are.
  double imbalance_cost = 1;
  /// No dealing of these steps' samples to ranks has a lower imbalance_cost: in each step some rank holds the
  /// costliest sample, some rank two of the ranks + 1 costliest, and so on. 1 when padded.
  double lower_bound_cost = 1;
  /// Standard deviation over steps of a step's mean length / what independent random draws of the same size
  /// would give. 1 is random; 0 where lengths do not differ or a single step counts.
  double step_mean_ratio = 0;
  /// Correlation of that mean between neighbouring steps; 0 where fewer than three steps count.
  double lag1 = 0;
  /// Tokens of a step / its budget: mean over steps, and the greatest.
  double step_tokens_mean = 0;
  double step_tokens_max = 0;
  /// Mean over steps and ranks.
  double micro_batches = 0;
};

PlanStats stats_of(const Plan& plan, std::span<const std::uint32_t> lengths);

/// With the members' names as keys.
void to_json(nlohmann::json& json, const PlanStats& stats);

}  // namespace lockstep::data
