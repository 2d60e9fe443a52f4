// The devices other than the CPU on which a rank can compute: CUDA's, or those of a backend that was added to LibTorch
// (PrivateUse1). LibTorch 1.13 and 2.x are asked in the same way, and a LibTorch without such devices needs no other code.
//
//   const c10::Device device = accelerator().value_or(c10::kCPU);
//
// Threads: safe from any.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <optional>

namespace lockstep {

inline constexpr std::array kAccelerators = {c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

/// The number of devices of this type that LibTorch can use.
inline int device_count(c10::DeviceType type) {
  // Its library of CUDA's streams counts devices even if that of the operators is missing.
  if (type == c10::DeviceType::CUDA && !at::hasCUDA()) return 0;
  const auto* const backend = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)].load();
  return backend == nullptr ? 0 : backend->deviceCount();
}

/// The type of this node's devices; nullopt if there is only the CPU.
inline std::optional<c10::DeviceType> accelerator() {
  for (const auto type : kAccelerators) {
    if (device_count(type) > 0) return type;
  }
  return std::nullopt;
}

}  // namespace lockstep
