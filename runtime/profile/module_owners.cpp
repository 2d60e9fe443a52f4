#include "runtime/profile/module_owners.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

namespace lockstep::profile {
namespace {

void add_modules(const torch::nn::Module& parent, const std::string& prefix, ModuleOwners& found) {
  for (const auto& child : parent.named_children()) {
    const std::string name = prefix + child.key();
    const torch::nn::Module* module = child.value().get();
    if (dynamic_cast<const torch::nn::SequentialImpl*>(module) != nullptr ||
        dynamic_cast<const torch::nn::ModuleListImpl*>(module) != nullptr) {
      add_modules(*module, name + ".", found);
      continue;
    }
    const auto parameters = module->parameters();
    if (parameters.empty()) continue;
    for (const auto& parameter : parameters)
      found.owners.emplace(parameter.storage().unsafeGetStorageImpl(), static_cast<int>(found.names.size()));
    found.names.push_back(name);
  }
}

}  // namespace

ModuleOwners module_owners(const torch::nn::Module& module) {
  ModuleOwners found;
  add_modules(module, "", found);
  return found;
}

}  // namespace lockstep::profile
