// Other ways to make batches of unequal lengths, for comparison. They are written from papers and
// documentation, not from the original code. They plan the same lengths for the same ranks and cap; lost
// samples and micro-batches over the cap are counted in the resulting plan.
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

/// fairseq (documentation of --max-tokens and --grouped-shuffling): sorts samples by length with random
/// ties and cuts them into batches of at most max-tokens. The batches of a step have similar lengths, the
/// steps are shuffled, and the last incomplete group of batches is dropped.
data::Plan fairseq(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// PyTorch's usual way: takes samples in random order, as many as fit, for one batch after the other. Ranks get the batches
/// in turn, and the last incomplete group is dropped. It is not one of peers().
data::Plan random_batches(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// multipack_sampler (its README): cuts a random order into steps. A binary search finds the maximum number
/// of samples that stay below the cap if each, longest first, goes to the rank with the fewest tokens. The
/// tail is dropped.
data::Plan multipack(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// Cuts a random order at 98.5 % of a step. Each sample, longest first, goes to the rank of lowest cost
/// with enough free tokens; then swaps samples between the costliest rank and every other one while that
/// helps (as described by Graham 1969 and by the OSDI'25 study of stragglers).
data::Plan greedy_with_swaps(std::span<const std::uint32_t> lengths, const data::PlanOptions& options);

/// All peers.
std::vector<Peer> peers();

}  // namespace lockstep::bench
