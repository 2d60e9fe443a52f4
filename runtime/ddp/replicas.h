// Makes sure that all ranks hold the same model: compares names, shapes and types, then copies the values of
// one rank to the others; later compares the values every few steps.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it; all ranks call
// the same functions in the same order.
#pragma once

#include <torch/torch.h>

#include <cstdint>
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

/// Compares the trained parameters of all ranks every few steps, bit by bit. All ranks sum the same gradients, so
/// their parameters stay equal as long as they compute alike. Ranks on different processors, or with different
/// numbers of threads, may round differently; then the models drift apart, slowly and without any other sign.
///
/// A check hashes the parameters once (on the CPU with LibTorch's threads, on a device there), and waits for the hashes of
/// all ranks.
class ReplicaCheck {
 public:
  /// The communicators take host memory and memory of the parameters' device. Throws UsageError for a
  /// negative number of steps.
  ReplicaCheck(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
               std::int64_t every);

  /// All ranks call it at the end of each synchronised backward. Compares in every so many calls. Throws Error on all
  /// ranks, naming a rank, its node and a parameter, if the parameters differ.
  void compare(const std::vector<NamedTensor>& parameters, std::int64_t step);

 private:
  std::string largest_difference_from_rank_0(const std::vector<NamedTensor>& parameters);
  std::string describe(int rank, const std::string& difference);

  comm::Communicator& host_communicator_;
  comm::Communicator& device_communicator_;
  std::int64_t every_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::ddp
