// Advice on what to change, in sentences that each give the number that says so. It distinguishes one rank
// that is always slow (look at its node) from ranks that take turns at being late (the work is uneven).
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// At least one sentence: if nothing stands out, it gives the numbers that show it.
std::vector<std::string> advise(const Run& run);

}  // namespace lockstep::report
