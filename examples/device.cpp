#include "examples/device.h"

#include <torch/version.h>

#include "common/error.h"
#include "runtime/profile/accelerator.h"

namespace lockstep {

c10::Device choose_device(const std::string& name, const World& world) {
  const auto found = accelerator();
  if (name == "cpu" || (name == "auto" && !found)) return c10::kCPU;
  const c10::DeviceType type = name == "auto" ? *found : c10::DeviceType::CUDA;
  const int devices = device_count(type);
  if (devices == 0) {
    fail_usage(
        "--device {}: LibTorch {} finds no CUDA device; choose cpu or auto, or build with a CUDA wheel (docs/users/gpus.md)",
        name, TORCH_VERSION);
  }
  const int index = devices == 1 ? 0 : world.local_rank();
  if (index >= devices) {
    fail_usage("--device {}: this node has {} devices for {} ranks; start one rank for each device", name,
               devices, world.local_size());
  }
  return {type, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace lockstep
