// Ranks must hold the same model: checked by name, shape and type, then made equal.
//
// Threads: the training thread; all ranks call the same functions in the same order.
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
  bool sparse = false;  ///< its gradient will be
};

/// All parameters of the module, each tensor once: one that is registered under several names has the first.
std::vector<NamedTensor> named_parameters_of(const torch::nn::Module& module);

/// The device of all parameters and buffers, which is the CPU or a CUDA one. Throws UsageError naming the
/// first that lies elsewhere.
torch::Device device_of(const torch::nn::Module& module);

/// All buffers of the module.
std::vector<NamedTensor> named_buffers_of(const torch::nn::Module& module);

/// Throws UsageError naming the first tensor that cannot be overwritten with another rank's, since it is
/// sparse or expanded. `kind`: "parameter".
void refuse_unwritable(std::string_view kind, const std::vector<NamedTensor>& tensors);

/// Something that all ranks must have alike, and what this rank has: {"option static_graph", "true"}.
struct Trait {
  std::string what;
  std::string value;
};

/// What ranks must have alike of each of these: name, type, shape, strides, whether it is frozen.
std::vector<Trait> traits_of(std::string_view kind, const std::vector<NamedTensor>& tensors);

/// Compares the traits with rank 0's. Throws UsageError on every rank, naming the first that differs, as rank
/// 0 and as the first other rank see it. `label`: why they are compared, for errors of the communicator.
/// `remedy`: what the user should do.
void check_alike(comm::Communicator& communicator, const std::vector<Trait>& traits, std::string_view label,
                 std::string_view remedy);

/// Overwrites the tensors with those of `root`. `kind`: "parameter", for errors.
void broadcast_from(comm::Communicator& communicator, int root, const std::vector<NamedTensor>& tensors,
                    std::string_view kind);

}  // namespace lockstep::ddp
