// clip_grad_norm() limits the length of a step: it scales all gradients down so that their common norm is at most max_norm. Call
// it when gradients are final, after a synchronised backward and before step().
//
// After DistributedDataParallel's backward all ranks have the same gradients, so each computes the same norm
// without communication. With DistributedOptimizer gradients are spread over the ranks: pass the optimizer
// instead of parameters, or use its clip_grad_norm().
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <utility>
#include <vector>

namespace lockstep {

struct ClipOptions {
  double norm_type = 2;  ///< more than 0; infinity for the largest absolute value
  /// Throws Error if the norm is infinite or NaN, and leaves the gradients unchanged.
  bool error_if_nonfinite = false;
};

/// A norm, as a number. On a device it is read there when it is first used, and the host waits for that.
class GradientNorm {
 public:
  GradientNorm(double norm) : norm_(norm) {}  // NOLINT(google-explicit-constructor)
  explicit GradientNorm(torch::Tensor norm) : on_device_(std::move(norm)) {}
  operator double() const {  // NOLINT(google-explicit-constructor)
    if (on_device_.defined()) norm_ = std::exchange(on_device_, torch::Tensor()).item<double>();
    return norm_;
  }

 private:
  mutable double norm_ = 0;
  mutable torch::Tensor on_device_;  // until it has been read
};

/// Clips, and returns the norm before clipping. Parameters without a gradient count as zero. Throws
/// UsageError for an invalid norm_type or max_norm, and for sparse gradients.
GradientNorm clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                            const ClipOptions& options = {});

/// The same for all parameters of an optimizer. There is an overload for DistributedOptimizer, so that one
/// function can be written for both.
GradientNorm clip_grad_norm(const torch::optim::Optimizer& optimizer, double max_norm,
                            const ClipOptions& options = {});

namespace train {

/// A part of a norm: the sum of |x|^norm_type over the elements, or the largest |x|. Parts are combined by
/// adding them, or by taking the larger one.
/// On a device it is one number that the host reads.
double norm_part(const std::vector<torch::Tensor>& tensors, double norm_type);
double norm_of_part(double part, double norm_type);

/// The factor by which tensors must be multiplied; 1 if the norm is small enough. Throws as clip_grad_norm
/// does.
double clip_factor(double norm, double max_norm, const ClipOptions& options);
void scale(const std::vector<torch::Tensor>& tensors, double factor);

}  // namespace train

}  // namespace lockstep
