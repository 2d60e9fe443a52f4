// Sorts the samples of a step, longest first. It is a radix sort: sorting by comparison would take longer
// than everything else that the planner does with a sample.
//
// Threads: a LengthSort belongs to one thread at a time.
#pragma once

#include <vector>

#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class LengthSort {
 public:
  /// The sort is stable: samples of equal length keep their order.
  void longest_first(std::vector<Item>& items);

 private:
  std::vector<Item> other_;
  std::vector<std::uint32_t> counts_;
};

}  // namespace lockstep::data
