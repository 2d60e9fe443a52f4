// Finds the communicator for the memory of a model's device.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include "runtime/comm/world.h"

namespace lockstep::ddp {

/// For the CPU, the World's own communicator. For a CUDA device, the NCCL communicator, which follows
/// LibTorch's current stream; from then on the World's timer records the times of that stream. All ranks call
/// it together. Throws as World::communicator_of_device does.
comm::Communicator& communicator_for(World& world, torch::Device device);

}  // namespace lockstep::ddp
