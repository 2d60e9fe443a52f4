// Exchanges samples between a step and the pool so that the step's number of samples changes, and its mean
// length with it, while its tokens stay.
//
// Threads: safe from any, on items and a LengthSort of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_sort.h"

namespace lockstep::data {

/// Items, of which those before `first` stay where they are.
struct Part {
  std::vector<Item>& items;
  std::size_t first;
};

/// Exchanges the shortest of `shorts` for longs whose length is theirs together, until `change` more samples
/// have gone there than came back.
void exchange_short_for_long(Part shorts, Part longs, std::size_t change, LengthSort& sort);

}  // namespace lockstep::data
