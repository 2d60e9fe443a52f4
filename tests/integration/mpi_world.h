// The World of tests on several ranks (mpi_main.cpp).
#pragma once

#include "runtime/comm/world.h"

namespace lockstep::testing {

/// The World that main constructed.
World& world();

/// Whether `mine` is true on any rank. All ranks call it.
bool any_rank(bool mine);

}  // namespace lockstep::testing
