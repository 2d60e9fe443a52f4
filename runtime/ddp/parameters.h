// The parameters of a module, each tensor once. torch::nn::Module::parameters() lists a tensor that has two names
// (tied weights) twice: an optimizer that gets such a list updates the tensor twice in a step.
//
//   torch::optim::AdamW optimizer(lockstep::parameters_of(*model), options);
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <unordered_set>
#include <vector>

namespace lockstep {

/// Tells whether a tensor was seen before.
class SeenTensors {
 public:
  /// Returns false if the tensor was added before. A view or a copy of a tensor is another one.
  bool add(const torch::Tensor& tensor) { return seen_.insert(tensor.unsafeGetTensorImpl()).second; }

 private:
  std::unordered_set<const void*> seen_;
};

/// In the order of parameters().
inline std::vector<torch::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parameters;
  SeenTensors seen;
  for (const auto& parameter : module.parameters()) {
    if (seen.add(parameter)) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
