// LibTorch's optimizers with one pass over memory for each parameter, where LibTorch makes about ten. The
// results are LibTorch's up to rounding; options, parameter groups, state and saved files are LibTorch's own,
// so FusedAdamW can take the place of torch::optim::AdamW anywhere, also within DistributedOptimizer.
//
//   const auto options = torch::optim::AdamWOptions(3e-4).weight_decay(0.1);
//   lockstep::FusedAdamW optimizer(lockstep::decay_groups(*model, options));
//
// Parameters are dense tensors of float or double; step() throws UsageError for others. On a device they may also be of
// half types, and LibTorch's own fused or foreach kernels make the step.
//
// Threads: the training thread. step() computes on LibTorch's threads, or in the device's current stream.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

namespace lockstep {

namespace train {

std::vector<torch::optim::OptimizerParamGroup> decay_groups(
    const torch::nn::Module& module, std::unique_ptr<torch::optim::OptimizerOptions> decayed,
    std::unique_ptr<torch::optim::OptimizerOptions> others);

}  // namespace train

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

/// Two parameter groups with the options of the optimizer: matrices, convolutions and embeddings with its weight
/// decay, and biases and the weights of norms (parameters of fewer than two dimensions) without. Give the
/// options here only: the optimizer would use its own for groups without options, and these have them.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const torch::nn::Module& module,
                                                            const Options& options) {
  auto others = std::make_unique<Options>(options);
  others->weight_decay(0);
  return train::decay_groups(module, std::make_unique<Options>(options), std::move(others));
}

}  // namespace lockstep
