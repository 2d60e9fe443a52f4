// Makes sure that all ranks hold the same model: compares names, shapes and types, then copies the values of
// one rank to the others.
//
// Threads: the training thread; all ranks call the same functions in the same order.
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/alike.h"

namespace lockstep::ddp {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// All parameters of the module. A tensor that is registered under several names appears once, with the
/// first.
std::vector<NamedTensor> named_parameters_of(const torch::nn::Module& module);

/// The device of all parameters and buffers: the CPU or a CUDA device. Throws UsageError naming the first
/// tensor on another device.
torch::Device device_of(const torch::nn::Module& module);

std::vector<NamedTensor> named_buffers_of(const torch::nn::Module& module);

/// Throws UsageError naming the first tensor that cannot be overwritten with another rank's values, because
/// it is sparse or expanded. `kind`: "parameter".
void refuse_unwritable(std::string_view kind, const std::vector<NamedTensor>& tensors);

/// For each tensor the properties that must be the same on all ranks: name, type, shape, strides, whether it
/// is frozen.
std::vector<comm::Property> properties_of(std::string_view kind, const std::vector<NamedTensor>& tensors);

/// Overwrites the tensors with those of `root`. `kind`: "parameter", for errors.
void broadcast_from(comm::Communicator& communicator, int root, const std::vector<NamedTensor>& tensors,
                    std::string_view kind);

}  // namespace lockstep::ddp
