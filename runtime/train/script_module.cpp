#include "runtime/train/script_module.h"

#include <memory>
#include <string>

#include "common/error.h"

namespace lockstep {
namespace {

// Names of torch::nn::Module must not contain dots, so the tree of submodules is built too.
void register_tensors(torch::nn::Module& module, const torch::jit::Module& script) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false))
    module.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  for (const auto& buffer : script.named_buffers(/*recurse=*/false))
    module.register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children()) {
    auto part = std::make_shared<torch::nn::Module>(child.name);
    register_tensors(*part, child.value);
    module.register_module(child.name, std::move(part));
  }
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(torch::jit::Module script)
    : torch::nn::Module("ScriptModule"), script_(std::move(script)) {
  if (script_.parameters().size() == 0) {
    fail_usage(
        "ScriptModule: the script does not have parameters to train; save it in Python without "
        "torch.jit.freeze()");
  }
  register_tensors(*this, script_);
  train(script_.is_training());
}

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
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
