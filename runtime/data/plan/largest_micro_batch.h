// The largest micro-batch of a plan, to try before training whether it fits into memory
// (runtime/train/memory_warm_up.h).
//
// Threads: safe from any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/data/plan/plan.h"

namespace lockstep::data {

struct MicroBatchShape {
  std::int64_t samples = 0;
  std::int64_t longest = 0;  ///< tokens of the longest sample; of each row, if padded
  std::int64_t tokens = 0;   ///< in all; with the padding, if padded: samples x longest
};

/// The micro-batch of any rank with the highest cost by the plan's Cost. `lengths` are those that the plan was made of.
/// All zero for a plan without steps.
MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths);

}  // namespace lockstep::data
