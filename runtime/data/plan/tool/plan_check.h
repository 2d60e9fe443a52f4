// Whether a plan may be trusted, checked against the lengths without any of the planner's code.
//
// Threads: safe from any.
#pragma once

#include <cstddef>

#include "runtime/data/lengths.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct CheckedPlan {
  std::size_t dropped = 0;  ///< samples, or pieces of them, that are in no step, as in plan_stats.h
  std::size_t skipped = 0;  ///< of these, the samples over the cap (TooLong::skip)
};

/// Throws Error saying in one line what is wrong first: other data than planned, a sample that is missing,
/// unknown or there twice, a micro-batch over the cap; of a mixture, a sample that is not once in each epoch
/// of its data set, other steps than it has, data sets that a range does not draw from, or different numbers
/// of micro-batches where the plan was made for equal ones.
CheckedPlan check_plan(const Plan& plan, const Lengths& lengths);

}  // namespace lockstep::data
