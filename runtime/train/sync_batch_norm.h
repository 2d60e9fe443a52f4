// Batch normalisation with the statistics of all ranks' batches, as if there were one process (PyTorch's
// SyncBatchNorm). Use it where a rank's own batch is too small for good statistics.
//
//   SyncBatchNorm norm(world, BatchNormOptions(64));   // a member, instead of torch::nn::BatchNorm2d
//   lockstep::convert_sync_batch_norm(world, *model);   // or replace those in every torch::nn::Sequential of the model
//
// Ranks may have batches of different sizes. In training every forward and every backward communicates once,
// so all ranks call them equally often: with DistributedDataParallel a rank must not skip() while others
// train. Evaluation does not communicate: it uses the running statistics, or, without them,
// the statistics of the rank's own batch. A backward with create_graph (gradient penalties) communicates twice
// more, and so does the backward through its gradients.
//
// Threads: as the module's forward and backward.
#pragma once

#include <torch/torch.h>

#include "runtime/comm/world.h"

namespace lockstep {

/// Input: (N, C, ...), of 2 dimensions or more, floating point. Parameters, buffers, options and their names
/// are those of torch::nn::BatchNorm, so checkpoints are exchangeable.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// The world must outlive the module.
  SyncBatchNormImpl(World& world, const torch::nn::BatchNormOptions& batch_norm_options);

  /// Throws UsageError for an input with another number of channels, and if all ranks together have fewer
  /// than two values per channel.
  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  World* world_;
};
TORCH_MODULE(SyncBatchNorm);

/// Replaces every BatchNorm1d, 2d and 3d in the Sequentials of a module, at any depth, and keeps their parameters and
/// statistics. Call it before you make the optimizer and DistributedDataParallel. Throws UsageError naming a batch norm
/// that is not in a Sequential: C++ cannot exchange a member of a module class, so declare it as SyncBatchNorm instead.
void convert_sync_batch_norm(World& world, torch::nn::Module& module);

}  // namespace lockstep
