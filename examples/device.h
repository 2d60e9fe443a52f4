// The device that a rank of an example computes on.
//
// Threads: safe from any.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "runtime/comm/world.h"

namespace lockstep {

/// `name` is "cpu", "cuda", or "auto": the node's devices if it has some that LibTorch can use. On a node
/// with several devices a rank takes the one with its local rank; Slurm may also show each task only its own.
/// Throws UsageError for "cuda" if there is no device, and if there are fewer devices than ranks on the node.
c10::Device choose_device(const std::string& name, const World& world);

}  // namespace lockstep
