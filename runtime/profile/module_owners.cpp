#include "runtime/profile/module_owners.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <iterator>

namespace lockstep::profile {

void ModuleOwners::add(const torch::nn::Module& module, const std::string& prefix) {
  for (const auto& item : module.named_children()) {
    const std::string name = prefix + item.key();
    const torch::nn::Module& child = *item.value();
    if (dynamic_cast<const torch::nn::SequentialImpl*>(&child) != nullptr ||
        dynamic_cast<const torch::nn::ModuleListImpl*>(&child) != nullptr) {
      add(child, name + ".");
      continue;
    }
    const auto parameters = child.parameters();
    if (parameters.empty()) continue;
    for (const torch::Tensor& parameter : parameters) {
      const auto begin = reinterpret_cast<std::uintptr_t>(address_of(parameter));
      if (begin != 0)
        ranges_.emplace(begin, Range{begin + parameter.nbytes(), static_cast<int>(names_.size())});
    }
    names_.push_back(name);
  }
}

int ModuleOwners::owner_of(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return -1;
  const Range& range = std::prev(after)->second;
  return at < range.end ? range.module : -1;
}

}  // namespace lockstep::profile
