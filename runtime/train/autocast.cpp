#include <ATen/autocast_mode.h>

#include <algorithm>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/grad_scaler.h"

namespace lockstep {
namespace {

torch::DeviceType checked(torch::DeviceType device, torch::ScalarType type) {
  const auto& devices = torch_compat::kAutocastDevices;
  if (std::find(devices.begin(), devices.end(), device) == devices.end())
    fail_usage("Autocast does not support device type {}; use torch::kCPU or torch::kCUDA",
               c10::DeviceTypeName(device));
  const bool supported = type == torch::kBFloat16 || (type == torch::kHalf && device != torch::kCPU);
  if (!supported) {
    fail_usage("Autocast does not support {} on {}; use torch::kBFloat16{}", c10::toString(type),
               c10::DeviceTypeName(device), device != torch::kCPU ? " or torch::kHalf" : "");
  }
  return device;
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, torch::ScalarType type, bool enabled)
    : device_(checked(device, type)),
      enabled_before_(torch_compat::autocast_enabled(device)),
      type_before_(torch_compat::autocast_type(device)) {
  at::autocast::increment_nesting();
  torch_compat::set_autocast(device, enabled, type);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  torch_compat::set_autocast(device_, enabled_before_, type_before_);
}

}  // namespace lockstep
