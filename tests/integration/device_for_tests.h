// The device on which a rank runs the tests that need one.
#pragma once

#include <string>

#include "common/environment.h"
#include "common/error.h"
#include "runtime/profile/accelerator.h"

namespace lockstep::testing {

/// The CPU if there are no other devices. Throws Error if LOCKSTEP_TEST_DEVICE names another type.
inline c10::Device device_for_tests(int local_rank) {
  const auto type = accelerator().value_or(c10::kCPU);
  const std::string found = c10::Device(type).str();
  const std::string expected = environment::get_or("LOCKSTEP_TEST_DEVICE", found);
  if (found != expected) fail("LOCKSTEP_TEST_DEVICE={}, but LibTorch finds only {}", expected, found);
  return type == c10::kCPU ? c10::Device(type) : c10::Device(type, static_cast<c10::DeviceIndex>(local_rank));
}

}  // namespace lockstep::testing
