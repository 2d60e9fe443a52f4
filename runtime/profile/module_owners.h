// Finds the module that owns a parameter. Tools that divide an operation's time or memory among modules attribute an
// operation to the owner of its weights, since C++ modules do not have forward hooks.
//
// Threads: values.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::profile {

class ModuleOwners {
 public:
  /// Adds the module's children that have parameters, with `prefix` before their names. Those of a Sequential or ModuleList
  /// are added one by one.
  void add(const torch::nn::Module& module, const std::string& prefix = "");

  const std::vector<std::string>& names() const { return names_; }

  /// The module, as an index in names(), whose parameter is at this address; -1 if there is none. Parameters may
  /// share memory, as those of a flattened LSTM do.
  int owner_of(const void* address) const;
  /// The module of the first of the values that is a parameter or a part of one; -1 without any.
  template <typename Values>
  int owner_of_any(const Values& values) const;

 private:
  struct Range {
    std::uintptr_t end = 0;
    int module = -1;
  };
  std::vector<std::string> names_;
  std::map<std::uintptr_t, Range> ranges_;  // by their begins
};

/// Null if the value is not a tensor with memory.
inline const c10::StorageImpl* storage_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return nullptr;
  return value.toTensor().storage().unsafeGetStorageImpl();
}

/// The address of the first element; null if the value is not a tensor with memory.
inline const void* address_of(const c10::IValue& value) {
  const c10::StorageImpl* const storage = storage_of(value);
  if (storage == nullptr || storage->data() == nullptr) return nullptr;
  const at::Tensor& tensor = value.toTensor();
  return static_cast<const std::byte*>(storage->data()) +
         static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
}

template <typename Values>
int ModuleOwners::owner_of_any(const Values& values) const {
  for (const auto& value : values) {
    const int owner = owner_of(address_of(value));
    if (owner >= 0) return owner;
  }
  return -1;
}

}  // namespace lockstep::profile
