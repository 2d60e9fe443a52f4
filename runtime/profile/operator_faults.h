// Recognises operators that make a step slow or imprecise. The profiler, the check of a model and SyncDetector use it.
//
// Threads: safe from any.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::profile {

using Values = std::span<const c10::IValue>;

/// Whether the host waits for the device of the operation's tensors, if they are on a device of this type.
bool waits_for_device(std::string_view operation, Values inputs, c10::DeviceType type);

/// The bytes that the operation copies from host memory to a device; 0: none.
std::uint64_t bytes_to_device(std::string_view operation, Values inputs);

/// "aten::mean of 2048 values in BFloat16": a sum, or the like, of many values whose result is rounded to half precision.
std::optional<std::string> half_sum(std::string_view operation, Values inputs, Values results);

/// Finds convolutions whose input has another shape than before: cuDNN's autotuner then measures its algorithms again.
class ConvolutionShapes {
 public:
  /// Whether this weight had an input of another shape before, but never one of this shape.
  bool is_new(std::string_view operation, Values inputs);

 private:
  std::mutex mutex_;
  std::map<const void*, std::set<std::vector<std::int64_t>>> seen_;  // by weight
};

}  // namespace lockstep::profile
