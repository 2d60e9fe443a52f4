// Advice on the ranks' GPUs: not used, idle, memory that is not used, lower clocks, errors of memory.
//
// Threads: safe from any.
#pragma once

#include <vector>

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Empty without GPUs, and if nothing stands out.
std::vector<Advice> gpu_advice(const Run& run);

}  // namespace lockstep::report
