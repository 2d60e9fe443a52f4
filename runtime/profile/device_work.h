// The kernels and copies of a GPU while a profile was taken, and their shares of the time.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/profile/operator_table.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {

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

}  // namespace lockstep::profile
