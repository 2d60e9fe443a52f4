// Fits samples into micro-batches: the longest first into an empty one and then always the longest that still
// fits, which comes close to the fewest micro-batches that hold them.
//
// Threads: a FirstFit belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/even_steps.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

class FirstFit {
 public:
  explicit FirstFit(const PlanOptions& options) : cap_(options.cap), cost_(options.cost) {}

  /// Sorts samples, longest first and none over the cap, into groups that fit into a micro-batch each:
  /// replaces `items` by them, group after group, and `groups`.
  void fit(std::span<const Item> samples, std::vector<Item>& items, std::vector<Group>& groups);

 private:
  std::size_t next_unused(std::size_t place);

  std::uint64_t cap_;
  Cost cost_;
  std::vector<std::uint32_t> unused_;  // by place in the samples: where to look for the next unused one
};

}  // namespace lockstep::data
