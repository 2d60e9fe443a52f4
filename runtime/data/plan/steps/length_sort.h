// Sorts a step's samples longest first. A radix sort: comparing would take longer than everything else that
// the planner does with a sample.
//
// Threads: a LengthSort belongs to one thread at a time.
#pragma once

#include <vector>

#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class LengthSort {
 public:
  /// Stable: equal lengths stay in the order they came in.
  void longest_first(std::vector<Item>& items);

 private:
  std::vector<Item> other_;
  std::vector<std::uint32_t> counts_;
};

}  // namespace lockstep::data
