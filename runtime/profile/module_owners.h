// Finds the module that owns a parameter. Tools that divide an operation's time or memory among modules attribute an
// operation to the owner of its weights, since C++ modules do not have forward hooks.
//
// Threads: values.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::profile {

struct ModuleOwners {
  std::vector<std::string> names;  ///< of the modules; those of a Sequential or ModuleList one by one
  std::unordered_map<const c10::StorageImpl*, int> owners;  ///< of the parameters' memory: index in `names`

  /// The module of the first of the values that is a parameter; -1 without any.
  template <typename Values>
  int owner_of(const Values& values) const;
};

/// The module's children that have parameters.
ModuleOwners module_owners(const torch::nn::Module& module);

/// Null if the value is not a tensor with memory.
inline const c10::StorageImpl* storage_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return nullptr;
  return value.toTensor().storage().unsafeGetStorageImpl();
}

template <typename Values>
int ModuleOwners::owner_of(const Values& values) const {
  for (const auto& value : values) {
    const auto owner = owners.find(storage_of(value));
    if (owner != owners.end()) return owner->second;
  }
  return -1;
}

}  // namespace lockstep::profile
