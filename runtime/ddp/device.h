// Which communicator takes the memory of a model's device.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include "runtime/comm/world.h"

namespace lockstep::ddp {

/// World's own for the CPU; for a CUDA device the one over NCCL, which follows the streams that LibTorch
/// computes on. All ranks call it together. Throws as World::communicator_of_device.
comm::Communicator& communicator_for(World& world, torch::Device device);

}  // namespace lockstep::ddp
