// What to change, in sentences, each with the number that says so. It tells a rank that is always the slow
// one (look at its node) from steps in which now this rank and now that one is late (the work is uneven).
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// At least one sentence: where nothing stands out, it says by which numbers.
std::vector<std::string> advise(const Run& run);

}  // namespace lockstep::report
