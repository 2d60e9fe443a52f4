// Recognises operators that make a step slow or imprecise. The profiler, the check of a model and SyncDetector use it.
//
// Threads: safe from any.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::profile {

using Values = std::span<const c10::IValue>;

/// Whether the host waits for the device of the operation's tensors, if they are on a device of this type.
bool waits_for_device(std::string_view operation, Values inputs, c10::DeviceType type);

/// The bytes that the operation copies from host memory to a device; 0: none.
std::uint64_t bytes_to_device(std::string_view operation, Values inputs);

/// "aten::mean of 2048 values in BFloat16": a sum, or the like, of many values whose result is rounded to half precision.
std::optional<std::string> half_sum(std::string_view operation, Values inputs, Values results);

}  // namespace lockstep::profile
