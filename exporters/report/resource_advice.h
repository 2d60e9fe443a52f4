// Advice on what the ranks' processes use: memory and processor time against the limits of the job.
//
// Threads: safe from any.
#pragma once

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Adds to `found.advice` what stands out, by the rest of `found`. Nothing without samples.
void add_resource_advice(const Run& run, Findings& found);

}  // namespace lockstep::report
