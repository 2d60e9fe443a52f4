// The steps that all ranks of a run have in their records, side by side.
//
// Threads: safe from any.
#pragma once

#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// A step: the entries of the ranks, in the order of Run::ranks.
using StepRow = std::vector<const record::Step*>;

/// Without the first two steps of the job, which are slower, if more than eight remain. They point into `run`.
std::vector<StepRow> common_steps(const Run& run);

}  // namespace lockstep::report
