// The differences between the two LibTorch generations that Lockstep is built against: 1.13 (Debian 12) and
// the current wheel. All of them are here, so no other code checks the version of LibTorch.
//
//   torch_compat::NodeHandle accumulator = torch::autograd::impl::grad_accumulator(parameter);
//
// Threads: names only.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::torch_compat {

/// The pointer that owns a node of the autograd graph: a std::shared_ptr in 1.13, LibTorch's own counted
/// pointer in recent versions. Both can be null, compared, copied and dereferenced.
using NodeHandle = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// Whether zero_grad() without an argument sets gradients to none; in 1.13 it zeroes them.
inline constexpr bool kZeroGradSetsToNone = TORCH_VERSION_MAJOR >= 2;

/// The key under which an optimizer keeps the state of a parameter. In 1.13 it is the address as text.
inline auto optimizer_key(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

/// The types of devices that have autocast. 1.13 has one function for each of them.
inline constexpr std::array kAutocastDevices = {
    at::kCPU,
    at::kCUDA,
#if TORCH_VERSION_MAJOR >= 2
    at::kPrivateUse1,
#endif
};

/// Autocast of the calling thread, for these types.
inline bool autocast_enabled(at::DeviceType device) {
#if TORCH_VERSION_MAJOR >= 2
  return at::autocast::is_autocast_enabled(device);
#else
  return device == at::kCUDA ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled();
#endif
}

inline at::ScalarType autocast_type(at::DeviceType device) {
#if TORCH_VERSION_MAJOR >= 2
  return at::autocast::get_autocast_dtype(device);
#else
  return device == at::kCUDA ? at::autocast::get_autocast_gpu_dtype()
                             : at::autocast::get_autocast_cpu_dtype();
#endif
}

inline void set_autocast(at::DeviceType device, bool enabled, at::ScalarType type) {
#if TORCH_VERSION_MAJOR >= 2
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
#else
  if (device == at::kCUDA) {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(type);
  } else {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
  }
#endif
}

/// Multiplies all tensors by a number that is itself a tensor, on their device.
inline void foreach_mul_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
#if TORCH_VERSION_MAJOR >= 2
  at::_foreach_mul_(tensors, factor);
#else
  for (const at::Tensor& tensor : tensors) tensor.mul_(factor);
#endif
}

/// The norms of tensors of one type. The norm of a half type is computed in float, whose range it may need.
inline std::vector<at::Tensor> foreach_norm(std::vector<at::Tensor> tensors, double norm_type) {
  const at::ScalarType type = tensors.front().scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
#if TORCH_VERSION_MAJOR >= 2
  return at::_foreach_norm(tensors, norm_type, half ? std::optional(at::kFloat) : std::nullopt);
#else
  if (half) {
    for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kFloat);
  }
  return at::_foreach_norm(tensors, norm_type);
#endif
}

}  // namespace lockstep::torch_compat
