// A TorchScript module as a torch::nn::Module, so that a model that was exported from Python can be trained from C++
// with DistributedDataParallel, the optimizers and the rest of this library:
//
//   lockstep::ScriptModule model(torch::jit::load("model.pt"));   // of torch/script.h
//   lockstep::DistributedDataParallel ddp(model, world);
//   const auto logits = ddp(batch.inputs).toTensor();
//   …
//   model->script().save("trained.pt");
//
// Parameters and buffers are those of the script, under the same names, and share its memory: training changes
// both. A parameter that is assigned a new tensor in the script afterwards (setattr) is not seen here.
//
// Threads: as the module itself; training: the training thread.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "runtime/ddp/outputs.h"

namespace lockstep {

class ScriptModuleImpl : public torch::nn::Module {
 public:
  /// Frozen modules (torch.jit.freeze) no longer have parameters, and are refused with UsageError.
  explicit ScriptModuleImpl(torch::jit::Module script);

  /// Calls the script's forward. The inputs are whatever converts to an IValue: tensors, numbers, lists. Throws what
  /// TorchScript throws.
  template <typename... Inputs>
  c10::IValue forward(Inputs&&... inputs) {
    return script_.forward(std::vector<c10::IValue>{c10::IValue(std::forward<Inputs>(inputs))...});
  }

  /// Also switches the script (dropout, batch norm). Until it is called, each part has the mode in which it
  /// was saved.
  void train(bool on = true) override;

  /// The script, to save it or to call its other methods.
  torch::jit::Module& script() { return script_; }

 private:
  torch::jit::Module script_;
};
TORCH_MODULE(ScriptModule);

/// The tensors in what a script returns: a tensor, and tuples, lists and dictionaries of them, to any depth.
template <>
struct OutputTensors<c10::IValue> {
  static constexpr bool known = true;
  static void collect(const c10::IValue& output, std::vector<torch::Tensor>& tensors);
};

}  // namespace lockstep
