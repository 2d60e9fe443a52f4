// Adds the kernels and copies of this rank's GPU to the spans of a profile, from CUPTI through LibTorch's Kineto. Another
// profiler in the process (PyTorch's, nsys) may use CUPTI already: then a line says so, and the profile has no kernels.
//
// Threads: one thread makes all calls.
#pragma once

namespace lockstep::profile {

/// Whether LibTorch's devices are CUDA's: CUPTI knows no others.
bool can_trace_device();

/// A build without CUDA records nothing. true: begins to record; if it records already, forgets what ended before. false: ends, and adds the spans.
void trace_device(bool on);

}  // namespace lockstep::profile
