// Cuts the samples of one optimizer step into micro-batches of rows x longest, as models need that cannot
// take packed ones: longest first, so that rows of similar length share a micro-batch.
//
// Threads: a PaddedPacker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/item.h"
#include "runtime/data/planner.h"

namespace lockstep::data {

class PaddedPacker {
 public:
  explicit PaddedPacker(const PlanOptions& options);

  /// How many micro-batches these items take at least; longest first.
  std::size_t needed(std::span<const Item> items) const;

  /// Cuts them into the step's micro-batches, of least possible greatest cost. There must be no more than
  /// needed() allows. The items must live until the step has been used.
  StepView pack(std::span<const Item> items);

 private:
  struct Group {
    std::size_t begin;
    std::size_t end;
    double cost;
  };
  std::size_t cut(std::span<const Item> items, double limit, std::vector<Group>* groups) const;
  std::uint64_t row(std::uint32_t length) const;
  double cost(std::uint64_t length) const;

  std::size_t ranks_;
  std::size_t accumulate_;
  std::uint64_t cap_;
  std::uint32_t multiple_;
  Cost cost_;
  std::vector<double> slowness_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> indices_;
  std::vector<std::uint32_t> ends_;
};

}  // namespace lockstep::data
