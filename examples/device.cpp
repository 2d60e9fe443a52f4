#include "examples/device.h"

#include <torch/cuda.h>
#include <torch/version.h>

#include "common/error.h"

namespace lockstep {

c10::Device choose_device(const std::string& name, const World& world) {
  if (name == "cpu" || (name == "auto" && !torch::cuda::is_available())) return c10::kCPU;
  const auto devices = static_cast<int>(torch::cuda::device_count());
  if (devices == 0) {
    fail_usage(
        "--device {}: LibTorch {} finds no CUDA device; choose cpu or auto, or build with a CUDA wheel (docs/users/gpus.md)",
        name, TORCH_VERSION);
  }
  const int index = devices == 1 ? 0 : world.local_rank();
  if (index >= devices) {
    fail_usage("--device {}: this node has {} CUDA devices for {} ranks; start one rank for each device",
               name, devices, world.local_size());
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace lockstep
