// Advice on what to change. Each sentence has the number that shows the need. It distinguishes one rank that
// is always slow (check its node) from ranks that take turns at being late (the work is uneven).
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// Returns at least one sentence. If nothing stands out, the sentence has the numbers that show this.
std::vector<std::string> advise(const Run& run);

}  // namespace lockstep::report
