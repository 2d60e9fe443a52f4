// Activation checkpointing: saves memory. It does not keep the intermediate results of a part of forward, but
// computes that part a second time during backward (Chen et al. 2016; torch.utils.checkpoint in PyTorch).
//
//   torch::Tensor forward(torch::Tensor x) {
//     for (auto& block : blocks) x = lockstep::activation_checkpoint(block, x);
//     return head(x);
//   }
//
// The part's inputs and parameters are kept; all else is recomputed with the same random numbers and the same
// autocast settings. Gradients reach the parameters through the outer graph, so DistributedDataParallel works
// in every mode, find_unused_parameters included. Parts may be nested.
//
// Threads: as forward and backward of the module itself.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace train {
using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;
}

/// Calls the function with the inputs. Its results must depend only on the inputs, on `parameters` and on
/// random numbers; a parameter that is not in the list gets no gradient. Integer results are passed on.
/// Throws UsageError in a backward with create_graph, which is not supported, and if the second call returns
/// other shapes than the first.
std::vector<torch::Tensor> activation_checkpoint(const train::TensorFunction& function,
                                                 const std::vector<torch::Tensor>& inputs,
                                                 const std::vector<torch::Tensor>& parameters);

/// The same for a module (a ModuleHolder, as TORCH_MODULE makes it) and tensors. `forward` returns a tensor.
template <typename Module, typename... Tensors>
requires(std::is_convertible_v<Tensors, torch::Tensor>&&...) torch::Tensor
    activation_checkpoint(Module module, const Tensors&... inputs) {
  return activation_checkpoint(
             [module](const std::vector<torch::Tensor>& tensors) mutable {
               return [&]<std::size_t... I>(std::index_sequence<I...>) {
                 return std::vector<torch::Tensor>{module->forward(tensors[I]...)};
               }
               (std::index_sequence_for<Tensors...>());
             },
             {inputs...}, module->parameters())
      .front();
}

}  // namespace lockstep
