// What tests on several ranks share (mpi_main.cpp).
#pragma once

#include "runtime/comm/world.h"

namespace lockstep::testing {

/// The World that main made.
World& world();

/// Whether it is true on any rank; all ranks call it.
bool any_rank(bool mine);

}  // namespace lockstep::testing
