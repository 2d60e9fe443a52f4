// Rules on the operators of a profile.
//
// Threads: safe from any.
#pragma once

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Nothing if the run has no profile.
void add_profile_advice(const Run& run, std::vector<Advice>& advice);

}  // namespace lockstep::report
