// The device of this rank, for the tests on a simulated device.
#pragma once

#include "tests/integration/device_for_tests.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

inline torch::Device device() {
  return device_for_tests(world().local_rank());
}

}  // namespace lockstep::testing
