// Whether a plan may be trusted, checked against the lengths without any of the planner's code.
//
// Threads: safe from any.
#pragma once

#include <cstddef>

#include "runtime/data/plan/lengths.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct CheckedPlan {
  std::size_t counted =
      0;  ///< steps: all but an epoch's last, which cannot be full, unless it is the only one
  double imbalance_cost = 1;  ///< as in plan_stats.h
  std::size_t dropped = 0;    ///< samples, or pieces of them, that went with a last step that was dropped
};

/// Throws Error saying in one line what is wrong first: other data than planned, a sample that is missing,
/// unknown or there twice, a micro-batch over the cap; of a mixture, a sample that is not once in each epoch
/// of its data set, other steps than it has, or data sets that a range does not draw from. (That ranks and
/// steps have equally many micro-batches is in Plan's shape; read_plan refuses a file where it is not so.)
CheckedPlan check_plan(const Plan& plan, const Lengths& lengths);

}  // namespace lockstep::data
