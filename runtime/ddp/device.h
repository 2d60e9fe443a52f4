// Finds the communicator for the memory of a model's device, and the stream on which it works. It knows for each type of
// device which of CUDA's streams stand for those of LibTorch.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <string>

#include "runtime/comm/world.h"
#include "runtime/ddp/device_times.h"

namespace lockstep::ddp {

/// Throws UsageError if ranks cannot exchange memory of this device. `what` is on it.
void check_supported(torch::Device device, const std::string& what);

/// For the CPU, the World's own communicator. For another device, the NCCL communicator, which follows
/// LibTorch's current stream; from then on the World's timer records the times of that stream. All ranks call
/// it together. Throws as World::communicator_of_device does.
comm::Communicator& communicator_for(World& world, torch::Device device);

/// The stream on which communicator_for(…, device) runs its operations: one of LibTorch's pool, so that LibTorch's
/// allocator can wait for it. For the CPU, its only stream.
c10::Stream communication_stream(torch::Device device);

/// The clocks of the calling thread's stream and of that one; null for the CPU.
DeviceClocks clocks_of(torch::Device device);

}  // namespace lockstep::ddp
