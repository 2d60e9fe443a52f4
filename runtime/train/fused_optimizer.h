// LibTorch's optimizers with one pass over memory for each parameter, where LibTorch makes about ten. The
// results are LibTorch's up to rounding; options, parameter groups, state and saved files are LibTorch's own,
// so FusedAdamW can take the place of torch::optim::AdamW anywhere, also within DistributedOptimizer.
//
//   lockstep::FusedAdamW optimizer(lockstep::decay_groups(*model, 0.1), torch::optim::AdamWOptions(3e-4));
//
// Parameters are dense tensors of float or double in host memory; step() throws UsageError for others.
//
// Threads: the training thread. step() computes on LibTorch's threads.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace lockstep {

class FusedSGD : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

/// LAMB (You et al. 2020), for large batches: Adam with decoupled weight decay, with each parameter's step
/// scaled to the parameter's norm times the learning rate. Parameters without weight decay (biases and norms, with
/// decay_groups()) make Adam's step, unscaled, as in NVIDIA's apex. Options and state are AdamW's; amsgrad is refused.
/// It needs whole parameters: do not use it within DistributedOptimizer.
class Lamb : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

/// Two parameter groups for AdamW and Lamb: matrices, convolutions and embeddings with this weight decay, and
/// biases and the weights of norms (parameters of fewer than two dimensions) without. `defaults` gives the
/// other options.
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const torch::nn::Module& module,
                                                            double weight_decay,
                                                            const torch::optim::AdamWOptions& defaults = {});

}  // namespace lockstep
