// What the parameters of a module were when hooks were put on them, and whether they still are.
//
// torch::load(), Module::to() and set_data() give a parameter another gradient accumulator or other memory
// and keep the tensor; register_module() and replace_module() bring new tensors. Hooks on what was there
// before are then never called again, and nothing else would tell.
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

  /// The first parameter that is not what it was, in a few words: "'first.weight' was replaced". Empty where
  /// there is none. A parameter that was frozen since is not a change: it may be trained again later.
  /// `memory`: whether a parameter that has other memory, and nothing else, counts as changed. Without a
  /// change it takes some 20 ns per parameter, and 20 times that where nothing is in the CPU's caches.
  std::string change_in(const torch::nn::Module& module, bool memory) const;

 private:
  struct Known {
    std::string name;
    torch::Tensor tensor;
    std::vector<std::int64_t> sizes;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // weak: its address is not used again, its memory is
    torch_compat::NodeHandle accumulator;               // null: frozen
  };

  static const char* difference(const Known& known, const torch::Tensor& now, bool memory);
  std::string describe(const torch::nn::Module& module, std::size_t at, bool memory) const;

  std::vector<Known> known_;  // as the module lists them; what it lists twice is here twice
};

}  // namespace lockstep::ddp
