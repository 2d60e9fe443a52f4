// Checks of the node's GPUs and their driver, as NVIDIA's management library (NVML) shows them.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "plugin/doctor/finding.h"

namespace lockstep::doctor {

/// "gpu": the node has GPUs, and the driver's library works. Then "gpu-persistence", "gpu-mig", "gpu-clocks" and
/// "gpu-ecc", and "nccl": LibTorch, if an earlier check found one, has NCCL. `device` is there on a node with NVIDIA's driver.
void check_gpus(Report& report, const std::filesystem::path& device = "/dev/nvidiactl");

}  // namespace lockstep::doctor
