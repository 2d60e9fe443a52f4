// Deals the chunks that nobody has to the nodes that read them. Every node computes the same shares from the same lists,
// so no message is needed. Whole files are dealt in turn, so that they are complete on all nodes in about the order of the
// lists, and few nodes open each file. A file that is larger than a fair share, or that is left over after the last whole
// turn, is divided between a few nodes, whose chunks alternate.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "staging/transfer/exchange/stream_plan.h"

namespace lockstep::transfer {

inline constexpr std::uint32_t kNoReader = std::numeric_limits<std::uint32_t>::max();

/// The reader of each chunk, from 0 to `readers` - 1; kNoReader for the chunks of a source that is `held`: a node has it.
/// `readers` is at least 1, `held` as long as the plan has sources.
std::vector<std::uint32_t> deal_chunks(const StreamPlan& plan, std::uint32_t readers,
                                       const std::vector<bool>& held);

}  // namespace lockstep::transfer
