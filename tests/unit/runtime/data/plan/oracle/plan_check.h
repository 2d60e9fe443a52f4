// Checks a plan against the lengths, without any of the planner's code.
//
// Threads: safe from any.
#pragma once

#include <cstddef>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct CheckedPlan {
  std::size_t dropped = 0;  ///< samples, or pieces of them, that are in no step, as in plan_stats.h
  std::size_t skipped = 0;  ///< of these, the samples over the cap (TooLong::skip)
};

/// Throws Error if the plan was made for other data.
void check_is_plan_of(const Plan& plan, const Lengths& lengths);

/// Throws Error that describes the first mistake in one line. Mistakes are: other data than planned; a
/// sample that is missing, unknown or used twice; a micro-batch over the cap; different numbers of
/// micro-batches if the plan promises equal ones. In a mixture also: a sample that is not once in each
/// epoch of its data set, and a wrong number of steps.
CheckedPlan check_plan(const Plan& plan, const Lengths& lengths);

}  // namespace lockstep::data
