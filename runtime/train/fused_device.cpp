#include "runtime/train/fused_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>

namespace lockstep::train {
namespace {

using torch::Tensor;
using OptionalTensor = decltype(at::IValue().toOptional<Tensor>());  // of either generation of LibTorch

using FusedAdamKernel = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                             at::TensorList, double, double, double, double, double, bool, bool,
                             const OptionalTensor&, const OptionalTensor&);
using UnscaleKernel = void(at::TensorList, Tensor&, const Tensor&);
using FusedSgdKernel = void(at::TensorList, at::TensorList, at::TensorList, double, double, double, double,
                            bool, bool, bool, const OptionalTensor&, const OptionalTensor&);

/// Calls LibTorch's fused kernel. Returns false if this LibTorch has none for the device.
template <typename Kernel, typename... Arguments>
bool call_fused(const char* name, const Tensor& on_device, Arguments&&... arguments) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!found || !found->hasKernelForDispatchKey(on_device.options().computeDispatchKey())) return false;
  found->template typed<Kernel>().call(std::forward<Arguments>(arguments)...);
  return true;
}

}  // namespace

void adam(const DeviceParameters<AdamStep>& all, bool decoupled) {
  const torch::NoGradGuard no_grad;
  const AdamStep& step = all.step;
  const bool amsgrad = !all.largest_squares.empty();
  // The kernels read the number of the step on the device.
  const Tensor number = torch::full(
      {}, step.number, torch::TensorOptions().dtype(torch::kFloat32).device(all.values[0].device()));
  const std::vector<Tensor> numbers(all.values.size(), number);
  if (call_fused<FusedAdamKernel>(
          decoupled ? "aten::_fused_adamw_" : "aten::_fused_adam_", number, at::TensorList(all.values),
          at::TensorList(all.gradients), at::TensorList(all.averages), at::TensorList(all.squares),
          at::TensorList(all.largest_squares), at::TensorList(numbers), step.learning_rate, step.beta1,
          step.beta2, step.weight_decay, step.eps, amsgrad, false, OptionalTensor(), OptionalTensor()))
    return;

  std::vector<Tensor> gradients = all.gradients;
  if (decoupled) {
    at::_foreach_mul_(all.values, 1 - step.learning_rate * step.weight_decay);
  } else if (step.weight_decay != 0) {
    gradients = at::_foreach_add(gradients, all.values, step.weight_decay);
  }
  at::_foreach_mul_(all.averages, step.beta1);
  at::_foreach_add_(all.averages, gradients, 1 - step.beta1);
  at::_foreach_mul_(all.squares, step.beta2);
  at::_foreach_addcmul_(all.squares, gradients, gradients, 1 - step.beta2);
  for (std::size_t i = 0; i < all.largest_squares.size(); ++i) {
    Tensor largest = all.largest_squares[i];
    at::maximum_out(largest, largest, all.squares[i]);
  }
  std::vector<Tensor> roots = at::_foreach_sqrt(amsgrad ? all.largest_squares : all.squares);
  at::_foreach_div_(roots, std::sqrt(step.correction2));
  at::_foreach_add_(roots, step.eps);
  at::_foreach_addcdiv_(all.values, all.averages, roots, -step.learning_rate / step.correction1);
}

void sgd(const DeviceParameters<SgdStep>& all) {
  const torch::NoGradGuard no_grad;
  const SgdStep& step = all.step;
  if (call_fused<FusedSgdKernel>("aten::_fused_sgd_", all.values[0], at::TensorList(all.values),
                                 at::TensorList(all.gradients), at::TensorList(all.averages),
                                 step.weight_decay, step.momentum, step.learning_rate, 1 - step.damped,
                                 step.nesterov, false, false, OptionalTensor(), OptionalTensor()))
    return;

  std::vector<Tensor> gradients = all.gradients;
  if (step.weight_decay != 0) gradients = at::_foreach_add(gradients, all.values, step.weight_decay);
  if (!all.averages.empty()) {
    at::_foreach_mul_(all.averages, step.momentum);
    at::_foreach_add_(all.averages, gradients, step.damped);
    gradients = step.nesterov ? at::_foreach_add(gradients, all.averages, step.momentum) : all.averages;
  }
  at::_foreach_add_(all.values, gradients, -step.learning_rate);
}

bool unscale(const std::vector<Tensor>& tensors, const Tensor& factor, Tensor& not_finite) {
  return call_fused<UnscaleKernel>("aten::_amp_foreach_non_finite_check_and_unscale_", factor,
                                   at::TensorList(tensors), not_finite, factor);
}

}  // namespace lockstep::train
