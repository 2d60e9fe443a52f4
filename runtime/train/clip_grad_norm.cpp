#include <cmath>

#include "common/error.h"
#include "runtime/ddp/parameters.h"
#include "runtime/train/distributed_optimizer.h"

namespace lockstep {
namespace train {
namespace {

double norm_of(const torch::Tensor& tensor, double norm_type) {
  // The norm of a half type would itself be of that type: compute it in float.
  const auto type = tensor.scalar_type();
  const bool half = type == torch::kHalf || type == torch::kBFloat16;
  return at::linalg_vector_norm(half ? tensor.to(torch::kFloat) : tensor, norm_type).item<double>();
}

}  // namespace

double norm_part(const std::vector<torch::Tensor>& tensors, double norm_type) {
  if (!(norm_type > 0)) fail_usage("clip_grad_norm: norm_type is {}, but must be more than 0", norm_type);
  const torch::NoGradGuard no_grad;
  double part = 0;
  for (const auto& tensor : tensors) {
    if (tensor.is_sparse())
      fail_usage("clip_grad_norm: sparse gradients cannot be clipped; make the layer dense");
    if (tensor.numel() == 0) continue;
    const double norm = norm_of(tensor, norm_type);
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
  if (!(max_norm >= 0)) fail_usage("clip_grad_norm: max_norm is {}, but must be 0 or more", max_norm);
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    fail(
        "the norm of all gradients is {}; check whether the loss is finite, or set error_if_nonfinite to false to go on",
        norm);
  }
  constexpr double kTiny = 1e-6;  // as in PyTorch, against a division by zero
  const double factor = max_norm / (norm + kTiny);
  return factor > 1 ? 1 : factor;
}

void scale(const std::vector<torch::Tensor>& tensors, double factor) {
  if (factor == 1 || tensors.empty()) return;
  const torch::NoGradGuard no_grad;
  at::_foreach_mul_(tensors, factor);
}

}  // namespace train

double clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                      const ClipOptions& options) {
  std::vector<torch::Tensor> gradients;
  SeenTensors seen;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined() && seen.add(parameter)) gradients.push_back(parameter.grad());
  }
  const double norm = train::norm_of_part(train::norm_part(gradients, options.norm_type), options.norm_type);
  train::scale(gradients, train::clip_factor(norm, max_norm, options));
  return norm;
}

double clip_grad_norm(const torch::optim::Optimizer& optimizer, double max_norm, const ClipOptions& options) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return clip_grad_norm(parameters, max_norm, options);
}

}  // namespace lockstep
