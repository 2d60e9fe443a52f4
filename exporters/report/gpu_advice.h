// Advice on the ranks' GPUs: not used, idle, memory that is not used, lower clocks, errors of memory.
//
// Threads: safe from any.
#pragma once

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Adds to `found.advice` what stands out, by the rest of `found`. Nothing without GPUs.
void add_gpu_advice(const Run& run, Findings& found);

}  // namespace lockstep::report
