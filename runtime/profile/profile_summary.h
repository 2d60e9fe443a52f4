// Evaluates the spans of a profile: the time of each operator and of each kernel, and the summary for lockstep-report.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/profile/spans.h"
#include "runtime/profile/trace_file.h"

namespace lockstep::profile {

struct OperatorTime {
  std::string name;
  std::uint64_t calls = 0;
  std::uint64_t total_ns = 0;  ///< with the operators that it called; recursive calls count once
  std::uint64_t self_ns = 0;   ///< without the operators that it called
};

/// The operators among `spans`, the largest own time first.
std::vector<OperatorTime> operator_times(std::span<const Span> spans);

/// One line per operator: calls, total and own time in milliseconds, the share of all own time.
std::string operator_table(std::span<const OperatorTime> operators);

/// The kind of a kernel or copy, by the name that CUPTI gives it. Which kernels use tensor cores cannot be asked; the names
/// are those of cuBLAS, cuDNN, CUTLASS and FlashAttention.
DeviceWork device_work_of(std::string_view name);

/// Nanoseconds within the profiled steps. Streams run side by side: time counts once for each kind, and once in `busy`.
struct DeviceTimes {
  std::uint64_t computing = 0;  ///< kernels but those of NCCL
  std::uint64_t tensor_cores = 0;
  std::uint64_t communicating = 0;
  std::uint64_t copying = 0;
  std::uint64_t busy = 0;
};
DeviceTimes device_times(std::span<const Span> spans);

/// The kernels and copies, those that take most time first.
std::vector<OperatorTime> kernel_times(std::span<const Span> spans);

/// An operator that takes less than this costs about as much as its call.
inline constexpr std::uint64_t kSmallOperatorNs = 10'000;

/// Totals over the steps:
///
///   rank, node, steps, step_ms
///   operators       [{name, calls, total_ms, self_ms}], at most ten, largest own time first
///   modules         [{name, forward_ms, backward_ms, forward_bytes, backward_bytes}], largest time first
///   device          {computing_ms, tensor_cores_ms, communicating_ms, copying_ms, busy_ms, kernels [{name, calls, ms}]}:
///                   the GPU's, without kernels if none were recorded
///   small           {calls, ms, name}: the model's operators below kSmallOperatorNs, and the one called most
///   host_copies, device_waits, tuned_again, half_sums   [{name, calls, bytes}]
nlohmann::json profile_summary(const Spans& spans, const TraceRank& rank);

}  // namespace lockstep::profile
