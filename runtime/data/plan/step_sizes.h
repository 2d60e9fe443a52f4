// Says how far a plan keeps the promise of step_tokens.
//
// Threads: safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// "steps hold 0.98 of the 1024 tokens of step_tokens on average, and at most 1.00 (212 steps)". The last step, which
/// may be the epoch's rest, does not count if there are others.
std::string describe_step_sizes(const Plan& plan, std::span<const std::uint32_t> lengths);

}  // namespace lockstep::data
