// Gives all ranks the buffers of one rank (running statistics) before a forward: all in one operation, since most are a
// few hundred bytes and a model may have hundreds.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/device_times.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

/// The buffers of a module and its submodules, without their names.
std::vector<torch::Tensor> buffers_of(const torch::nn::Module& module);

class BufferBroadcast {
 public:
  /// `communicator` takes memory of the buffers' device.
  BufferBroadcast(comm::Communicator& communicator, profile::StepTimer& timer)
      : communicator_(communicator), timer_(timer) {}

  /// Overwrites the tensors with those of `root`. All ranks call it, with tensors of the same types and shapes.
  void send(int root, const std::vector<torch::Tensor>& buffers);

 private:
  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  std::shared_ptr<void> memory_;  // for all buffers, one after the other
  std::size_t bytes_ = 0;
  std::optional<DeviceCollective> on_device_;
};

}  // namespace lockstep::ddp
