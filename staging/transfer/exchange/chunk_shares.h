// Deals the chunks of a source to the nodes that read it. Every node computes the same shares from the same list, so no
// message is needed. Whole files are dealt in turn, so that they are complete on all nodes in about the order of the
// list, and few nodes open each file. A file that is larger than a fair share, or that is left over after the last whole
// turn, is divided between a few nodes, whose chunks alternate.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <vector>

#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::transfer {

/// The reader of each chunk. `readers` must not be empty.
std::vector<std::uint32_t> deal_chunks(const ChunkPlan& plan, const std::vector<std::uint32_t>& readers);

}  // namespace lockstep::transfer
