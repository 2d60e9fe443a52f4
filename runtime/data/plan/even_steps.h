// Deals micro-batches that were made for several steps together to those steps, so that each gets some of few
// long samples and some of many short ones: the steps' mean lengths are then more alike than chance would
// make them, however the micro-batches were made.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/random.h"
#include "runtime/data/plan/randomness_budget.h"

namespace lockstep::data {

/// A micro-batch: neighbours in a list of items.
struct Group {
  std::size_t begin;
  std::size_t end;
  std::uint64_t tokens;  // without padding
  double cost;

  std::size_t samples() const { return end - begin; }
};

/// Steps of `batches` groups each. `groups`: those of fewest samples first. Where they do not come out even,
/// the last step has the rest, it too of all kinds.
std::vector<std::vector<Group>> even_steps(std::span<const Group> groups, std::size_t batches,
                                           Random& random);

/// The budget behind such steps.
RandomnessBudget budget_after(std::span<const std::vector<Group>> steps, RandomnessBudget budget);

}  // namespace lockstep::data
