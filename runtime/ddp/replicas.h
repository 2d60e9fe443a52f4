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

/// Compares parameters and the choices that all ranks must share with rank 0's. Throws UsageError on every
/// rank, naming the first parameter that differs, as rank 0 and as the first other rank see it.
void check_replicas_alike(comm::Communicator& communicator, const std::vector<NamedTensor>& parameters,
                          const std::string& choices);

/// Overwrites the tensors with those of `root`.
void broadcast_from(comm::Communicator& communicator, int root, const std::vector<torch::Tensor>& tensors,
                    std::string_view label);

}  // namespace lockstep::ddp
