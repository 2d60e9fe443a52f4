// The summary of a profile for lockstep-report: the operators that take most time, the modules, and the faults of
// operators.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/profile/spans.h"
#include "runtime/profile/trace_file.h"

namespace lockstep::profile {

/// An operator that takes less than this costs about as much as its call.
inline constexpr std::uint64_t kSmallOperatorNs = 10'000;

/// Totals over the steps:
///
///   rank, node, steps, step_ms
///   operators       [{name, calls, total_ms, self_ms}], at most ten, largest own time first
///   modules         [{name, forward_ms, backward_ms, forward_bytes, backward_bytes}], largest time first
///   device          {computing_ms, tensor_cores_ms, communicating_ms, copying_ms, busy_ms, kernels [{name, calls, ms}]}:
///                   the GPU's (device_work.h), without kernels if none were recorded
///   small           {calls, ms, name}: the model's operators below kSmallOperatorNs, and the one called most
///   host_copies, device_waits, tuned_again, half_sums   [{name, calls, bytes}]
nlohmann::json profile_summary(const Spans& spans, const TraceRank& rank);

}  // namespace lockstep::profile
