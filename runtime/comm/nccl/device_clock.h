// The step timer's clock for a CUDA device: events in the stream on which the training computes.
//
// Threads: the training thread.
#pragma once

#include <functional>
#include <memory>

#include "runtime/profile/device_clock.h"

namespace lockstep::comm::nccl {

/// `stream` returns the cudaStream_t on which the calling thread computes.
std::unique_ptr<profile::DeviceClock> make_device_clock(int device, std::function<void*()> stream);

}  // namespace lockstep::comm::nccl
