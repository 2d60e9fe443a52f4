// Work of an example that must succeed on every rank before any rank goes on.
//
// Threads: the training thread.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/comm/world.h"

namespace lockstep {

/// Whether `work` succeeded on all ranks, which call it together. If not, the lowest rank that failed prints why, in
/// one line that begins with the program's name. `label` names the work in errors, the same on all ranks.
bool done_on_all_ranks(World& world, std::string_view program, std::string_view label,
                       const std::function<void()>& work);

}  // namespace lockstep
