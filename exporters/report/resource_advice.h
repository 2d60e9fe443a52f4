// Advice on what the ranks' processes use: memory and processor time against the limits of the job.
//
// Threads: safe from any.
#pragma once

#include <vector>

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Empty without samples (records of version 1), and if nothing stands out.
std::vector<Advice> resource_advice(const Run& run);

}  // namespace lockstep::report
