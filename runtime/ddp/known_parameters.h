// Finds changes to a module's parameters since hooks were put on them.
//
// torch::load(), Module::to() and set_data() keep a parameter's tensor but give it another gradient
// accumulator or other memory; register_module() and replace_module() bring new tensors. The old hooks are
// then never called again, and LibTorch does not report it.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/torch_version.h"

namespace lockstep::ddp {

class KnownParameters {
 public:
  explicit KnownParameters(const torch::nn::Module& module);

  /// Describes the first change: "'first.weight' was replaced". Empty if there is none. A parameter that was
  /// frozen is not a change: it may be trained again later. `memory`: whether other memory alone counts as a
  /// change. If nothing changed, the check takes about 20 ns per parameter, and 20 times that with cold CPU
  /// caches.
  std::string change_in(const torch::nn::Module& module, bool memory) const;

  /// Remembers the parameters' versions, which every change of their values raises.
  void note_versions();
  /// The name of the first parameter whose values were changed since note_versions(); empty if there is none.
  std::string changed_values() const;

 private:
  struct Known {
    std::string name;
    torch::Tensor tensor;
    std::vector<std::int64_t> sizes;
    c10::weak_intrusive_ptr<c10::StorageImpl>
        storage;                           // weak: frees the memory, but no other storage gets its address
    torch_compat::NodeHandle accumulator;  // null if frozen
    std::uint32_t version = 0;
  };

  static const char* difference(const Known& known, const torch::Tensor& now, bool memory);
  std::string describe(const torch::nn::Module& module, std::size_t at, bool memory) const;

  std::vector<Known> known_;  // in the module's order; a parameter that is listed twice is here twice
};

}  // namespace lockstep::ddp
