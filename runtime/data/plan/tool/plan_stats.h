// Describes a plan by numbers. They are computed from the finished plan and the lengths alone, so they are
// valid for a plan from any source and do not repeat the planner's mistakes.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// The last step of an epoch takes the rest of the samples. It counts for the first four members but not
/// for the others, unless it is the only step. An epoch without samples has no steps, fill 0 and imbalance
/// 1. In a mixture all steps are full and all count; dropped and duplicated are 0, because its data sets repeat,
/// and the mean lengths of steps are compared with random draws from the samples that the steps use.
struct PlanStats {
  std::size_t steps = 0;
  /// Tokens / tokens of a full step, rounded up. A full step has ranks x accumulate x cap tokens, or
  /// `step_tokens` if the options set it.
  std::size_t minimum_steps = 0;
  /// Samples, or pieces of split samples, that are in no step.
  std::size_t dropped = 0;
  /// Uses of a sample or piece after its first.
  std::size_t duplicated = 0;
  /// Tokens / (micro-batches x cap).
  double fill = 0;
  /// Padding tokens / (tokens + padding tokens); 0 unless padded.
  double padding = 0;
  /// Maximum / mean of the ranks' tokens (without padding); the mean over steps.
  double imbalance_tokens = 1;
  /// The same of the cost: a*L + b*L*L summed over a rank's samples; if padded, rows x the cost of the
  /// longest. With speeds, of the ranks' times: the longest / the time that all would take if the cost were
  /// distributed in proportion to the speeds.
  double imbalance_cost = 1;
  /// A lower bound of imbalance_cost for every distribution of these steps' samples over the ranks: in each
  /// step some rank has the costliest sample, some rank has two of the ranks + 1 costliest, and so on. 1 if
  /// padded.
  double lower_bound_cost = 1;
  /// Standard deviation over steps of a step's mean length / the standard deviation of independent random
  /// draws of the same size. 1 is random; 0 if all lengths are equal or a single step counts.
  double step_mean_ratio = 0;
  /// Correlation of that mean between consecutive steps; 0 if fewer than three steps count.
  double lag1 = 0;
  /// Tokens of a step / its budget: mean over steps, and maximum.
  double step_tokens_mean = 0;
  double step_tokens_max = 0;
  /// Micro-batches of a rank in a step, mean.
  double micro_batches = 0;
};

PlanStats stats_of(const Plan& plan, std::span<const std::uint32_t> lengths);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanStats, steps, minimum_steps, dropped, duplicated, fill, padding,
                                   imbalance_tokens, imbalance_cost, lower_bound_cost, step_mean_ratio, lag1,
                                   step_tokens_mean, step_tokens_max, micro_batches)

}  // namespace lockstep::data
