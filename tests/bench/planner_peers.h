// How others make batches of unequal lengths, for comparison: re-expressed from their papers and
// documentation, not their code. They plan the same lengths for the same ranks and cap; what they lose or put
// over the cap is counted in the plan that comes out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::bench {

struct Peer {
  std::string name;
  data::Plan (*plan)(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);
};

/// fairseq (documentation of --max-tokens and --grouped-shuffling): samples sorted by length with random
/// ties, cut into batches of at most max-tokens; a step's batches are neighbours of similar length, and steps
/// are shuffled; the last incomplete group of batches is dropped.
data::Plan fairseq(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// multipack_sampler (its README): a random order, cut into steps. A binary search finds how many samples fit:
/// the longest goes first, to the rank with the fewest tokens, and no rank passes the cap. The tail is dropped.
data::Plan multipack(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// A random order cut at 98.5 % of a step; the longest sample goes first, to the cheapest rank where it fits,
/// then swaps between the costliest rank and every other while they help (as described by Graham 1969 and by
/// the OSDI'25 study of stragglers).
data::Plan greedy_with_swaps(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// All of them.
std::vector<Peer> peers();

}  // namespace lockstep::bench
