// The last lines of an example: what bounded its training, and where the time went.
//
// Threads: the training thread.
#pragma once

#include "runtime/comm/world.h"

namespace lockstep {

/// Rank 0 prints what lockstep-report begins with, from the records of the ranks on its node, and where all records are.
/// Nothing without records, and only their place in a build without the exporters. In your own program call lockstep-report, or read its --json.
void print_verdict(World& world);

}  // namespace lockstep
