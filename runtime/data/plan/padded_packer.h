// Cuts samples into micro-batches of rows x longest, as models need that cannot take packed ones: longest
// first, so that rows of similar length share a micro-batch.
//
// Threads: a PaddedPacker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/even_steps.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

class PaddedPacker {
 public:
  explicit PaddedPacker(const PlanOptions& options);

  /// How many micro-batches these items take at least; longest first.
  std::size_t needed(std::span<const Item> items) const;

  /// Cuts them into so many micro-batches, of least possible greatest cost; fewer only where there are fewer
  /// items. There must be no fewer than needed().
  std::vector<Group> cut_into(std::span<const Item> items, std::size_t batches) const;

  /// Deals a step's micro-batches to the ranks.
  StepView deal(std::span<const Item> items, std::vector<Group>& groups);

 private:
  std::size_t cut(std::span<const Item> items, double limit, std::vector<Group>* groups) const;
  Group group_of(std::span<const Item> items, std::size_t begin, std::size_t end) const;
  std::uint64_t row(std::uint32_t length) const;
  double cost(std::uint64_t length) const;

  std::size_t ranks_;
  std::size_t accumulate_;
  std::uint64_t cap_;
  std::uint32_t multiple_;
  Cost cost_;
  std::vector<double> slowness_;
  std::vector<std::uint32_t> indices_;
  std::vector<std::uint32_t> ends_;
};

}  // namespace lockstep::data
