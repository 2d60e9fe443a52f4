// Work that must succeed on every rank before any goes on: opening data, for one.
//
// Threads: the main thread.
#pragma once

#include <functional>

#include "runtime/comm/world.h"

namespace lockstep::text_lm {

/// Runs `work` on every rank. True on all ranks when it threw on none; otherwise false on all, after the
/// lowest rank that failed has printed why, in one line. What `work` does together with other ranks must fail
/// on all of them or on none.
bool done_on_all_ranks(World& world, const std::function<void()>& work);

}  // namespace lockstep::text_lm
