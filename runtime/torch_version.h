// What differs between the LibTorch generations that Lockstep is built against, 1.13 (Debian 12) and the
// current wheel, in one place: code elsewhere uses these names and asks for no version. What is missing here
// is added here.
//
//   torch_compat::NodeHandle accumulator = torch::autograd::impl::grad_accumulator(parameter);
//
// Threads: names only.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <utility>

namespace lockstep::torch_compat {

/// What holds a node of the autograd graph: a std::shared_ptr, in recent versions LibTorch's own counted
/// pointer. Both can be null, compared, copied and dereferenced.
using NodeHandle = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// Whether gradients are set to none where zero_grad() is called without an argument; 1.13 zeroes them.
inline constexpr bool kZeroGradSetsToNone = TORCH_VERSION_MAJOR >= 2;

/// The key under which an optimizer keeps what it knows of a parameter: in 1.13 the address as text.
inline auto optimizer_key(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

}  // namespace lockstep::torch_compat
