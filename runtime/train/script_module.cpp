#include "runtime/train/script_module.h"

#include <memory>
#include <string>

#include "common/error.h"

namespace lockstep {
namespace {

void register_tensors(torch::nn::Module& module, const torch::jit::Module& script);

// Only this part: torch::nn::Module::train() visits the others.
void switch_part(torch::jit::Module& script, bool training) {
  if (script.type()->hasAttribute("training")) script.setattr("training", training);
}

// A submodule of the script.
class ScriptPart : public torch::nn::Module {
 public:
  ScriptPart(std::string name, torch::jit::Module script)
      : torch::nn::Module(std::move(name)), script_(std::move(script)) {
    torch::nn::Module::train(script_.is_training());  // before it has parts, which may differ
    register_tensors(*this, script_);
  }

  void train(bool on) override {
    torch::nn::Module::train(on);
    switch_part(script_, on);
  }

 private:
  torch::jit::Module script_;
};

// Names of torch::nn::Module must not contain dots, so the tree of submodules is built too.
void register_tensors(torch::nn::Module& module, const torch::jit::Module& script) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false))
    module.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  for (const auto& buffer : script.named_buffers(/*recurse=*/false))
    module.register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children())
    module.register_module(child.name, std::make_shared<ScriptPart>(child.name, child.value));
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(torch::jit::Module script)
    : torch::nn::Module("ScriptModule"), script_(std::move(script)) {
  if (script_.parameters().size() == 0) {
    fail_usage(
        "ScriptModule: the script does not have parameters to train; save it in Python without torch.jit.freeze()");
  }
  torch::nn::Module::train(script_.is_training());  // before it has parts, which may differ
  register_tensors(*this, script_);
}

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  switch_part(script_, on);
}

void OutputTensors<c10::IValue>::collect(const c10::IValue& output, std::vector<torch::Tensor>& tensors) {
  if (output.isTensor()) return OutputTensors<torch::Tensor>::collect(output.toTensor(), tensors);
  if (output.isTuple()) {
    for (const auto& part : output.toTupleRef().elements()) collect(part, tensors);
  } else if (output.isList()) {
    for (const auto& part : output.toListRef()) collect(part, tensors);
  } else if (output.isGenericDict()) {
    for (const auto& item : output.toGenericDict()) collect(item.value(), tensors);
  } else if (output.isObject()) {
    for (const auto& slot : output.toObjectRef().slots()) collect(slot, tensors);
  }
}

}  // namespace lockstep
