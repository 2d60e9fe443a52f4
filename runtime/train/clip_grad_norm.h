// Keeps a step from being too long: scales all gradients down so that the norm of all of them together is at
// most max_norm. To be called when gradients are final: after a synchronised backward, before step().
//
// After DistributedDataParallel's backward all ranks have the same gradients, so each finds the same norm by
// itself. With DistributedOptimizer they are spread over the ranks: use its clip_grad_norm().
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace lockstep {

struct ClipOptions {
  double norm_type = 2;  ///< above 0; infinity for the largest absolute value
  /// Throws Error where the norm is infinite or no number; gradients are untouched then.
  bool error_if_nonfinite = false;
};

/// Returns the norm before clipping. Parameters without a gradient count as zero. Throws UsageError for a
/// norm_type or max_norm that makes no sense, and for sparse gradients.
double clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                      const ClipOptions& options = {});

namespace train {

/// A norm in parts: the sum over elements of |x|^norm_type, or their largest |x|; parts are added, or the
/// larger is taken.
double norm_part(const std::vector<torch::Tensor>& tensors, double norm_type);
double norm_of_part(double part, double norm_type);

/// What tensors are then multiplied by, 1 where nothing is to be done. Throws what clip_grad_norm does.
double clip_factor(double norm, double max_norm, const ClipOptions& options);
void scale(const std::vector<torch::Tensor>& tensors, double factor);

}  // namespace train
}  // namespace lockstep
