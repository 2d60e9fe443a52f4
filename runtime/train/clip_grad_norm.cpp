#include "runtime/train/clip_grad_norm.h"

#include <cmath>
#include <map>

#include "common/error.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/torch_version.h"

namespace lockstep {
namespace train {
namespace {

constexpr double kTiny = 1e-6;  // as in PyTorch, against a division by zero

void check_norm_type(double norm_type) {
  if (!(norm_type > 0)) fail_usage("clip_grad_norm: norm_type is {}, but must be more than 0", norm_type);
}

void check_max_norm(double max_norm) {
  if (!(max_norm >= 0)) fail_usage("clip_grad_norm: max_norm is {}, but must be 0 or more", max_norm);
}

void refuse_sparse(const torch::Tensor& tensor) {
  if (tensor.is_sparse())
    fail_usage("clip_grad_norm: sparse gradients cannot be clipped; make the layer dense");
}

bool is_half(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kHalf || tensor.scalar_type() == torch::kBFloat16;
}

torch::Tensor norm_of(const torch::Tensor& tensor, double norm_type) {
  // The norm of a half type would itself be of that type: compute it in float.
  return at::linalg_vector_norm(is_half(tensor) ? tensor.to(torch::kFloat) : tensor, norm_type);
}

// LibTorch's foreach operators need a few launches for all tensors of a type.
std::map<torch::ScalarType, std::vector<torch::Tensor>> by_type(const std::vector<torch::Tensor>& tensors) {
  std::map<torch::ScalarType, std::vector<torch::Tensor>> groups;
  for (const auto& tensor : tensors) groups[tensor.scalar_type()].push_back(tensor);
  return groups;
}

// Of tensors on a device; undefined if there are none. Nothing waits.
torch::Tensor norm_on_device(std::vector<torch::Tensor> tensors, double norm_type) {
  const torch::NoGradGuard no_grad;
  for (const auto& tensor : tensors) refuse_sparse(tensor);
  std::erase_if(tensors, [](const torch::Tensor& tensor) { return tensor.numel() == 0; });
  std::vector<torch::Tensor> norms;
  for (const auto& [type, group] : by_type(tensors)) {
    const torch::Tensor all = torch::stack(torch_compat::foreach_norm(group, norm_type)).to(torch::kDouble);
    norms.push_back(at::linalg_vector_norm(all, norm_type));
  }
  return norms.empty() ? torch::Tensor() : at::linalg_vector_norm(torch::stack(norms), norm_type);
}

bool on_device(const std::vector<torch::Tensor>& tensors) {
  return !tensors.empty() && !tensors.front().is_cpu();
}

}  // namespace

double norm_part(const std::vector<torch::Tensor>& tensors, double norm_type) {
  check_norm_type(norm_type);
  if (on_device(tensors)) {
    const torch::Tensor norm = norm_on_device(tensors, norm_type);
    if (!norm.defined()) return 0;
    return std::isinf(norm_type) ? norm.item<double>() : std::pow(norm.item<double>(), norm_type);
  }
  const torch::NoGradGuard no_grad;
  double part = 0;
  for (const auto& tensor : tensors) {
    refuse_sparse(tensor);
    if (tensor.numel() == 0) continue;
    const auto norm = norm_of(tensor, norm_type).item<double>();
    // std::max would lose a NaN, which must stay.
    part = std::isinf(norm_type) ? (norm > part || std::isnan(norm) ? norm : part)
                                 : part + std::pow(norm, norm_type);
  }
  return part;
}

double norm_of_part(double part, double norm_type) {
  return std::isinf(norm_type) ? part : std::pow(part, 1 / norm_type);
}

double clip_factor(double norm, double max_norm, const ClipOptions& options) {
  check_max_norm(max_norm);
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    fail(
        "the norm of all gradients is {}; check whether the loss is finite, or set error_if_nonfinite to false to go on",
        norm);
  }
  const double factor = max_norm / (norm + kTiny);
  return factor > 1 ? 1 : factor;
}

void scale(const std::vector<torch::Tensor>& tensors, double factor) {
  if (factor == 1 || tensors.empty()) return;
  const torch::NoGradGuard no_grad;
  at::_foreach_mul_(tensors, factor);
}

namespace {

// The factor stays on the device.
GradientNorm clip_on_device(const std::vector<torch::Tensor>& gradients, double max_norm, double norm_type) {
  check_norm_type(norm_type);
  check_max_norm(max_norm);
  const torch::Tensor norm = norm_on_device(gradients, norm_type);
  if (!norm.defined()) return 0.0;
  const torch::NoGradGuard no_grad;
  const torch::Tensor factor = (max_norm / (norm + kTiny)).clamp_max(1);
  for (const auto& [type, group] : by_type(gradients)) {
    if (!is_half(group.front())) {
      // LibTorch would multiply by a factor of another type tensor by tensor.
      torch_compat::foreach_mul_(group, factor.to(type));
      continue;
    }
    // A factor without dimensions would be rounded to the half type.
    const torch::Tensor of_one_dimension = factor.to(torch::kFloat).unsqueeze(0);
    for (const auto& gradient : group)
      (gradient.dim() > 0 ? gradient : gradient.unsqueeze(0)).mul_(of_one_dimension);
  }
  return GradientNorm(norm);
}

}  // namespace

}  // namespace train

GradientNorm clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                            const ClipOptions& options) {
  std::vector<torch::Tensor> gradients;
  SeenTensors seen;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined() && seen.add(parameter)) gradients.push_back(parameter.grad());
  }
  if (train::on_device(gradients) && !options.error_if_nonfinite)
    return train::clip_on_device(gradients, max_norm, options.norm_type);
  const double norm = train::norm_of_part(train::norm_part(gradients, options.norm_type), options.norm_type);
  train::scale(gradients, train::clip_factor(norm, max_norm, options));
  return norm;
}

GradientNorm clip_grad_norm(const torch::optim::Optimizer& optimizer, double max_norm,
                            const ClipOptions& options) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return clip_grad_norm(parameters, max_norm, options);
}

}  // namespace lockstep
