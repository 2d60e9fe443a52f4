// A sample as the planner handles it, and a step as it hands it out.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

/// Eight bytes, so that a block of samples stays in the cache while it is planned.
struct Item {
  std::uint32_t index;  ///< in the block that is planned (see segment.h)
  std::uint32_t length;
};

/// Longest first; equal lengths by index, so that the order is one and the same everywhere.
inline bool longer(const Item& x, const Item& y) {
  return x.length != y.length ? x.length > y.length : x.index < y.index;
}

inline std::uint64_t tokens_of(std::span<const Item> items) {
  std::uint64_t sum = 0;
  for (const Item& item : items) sum += item.length;
  return sum;
}

/// One optimizer step. Valid until the next one is made.
struct StepView {
  std::span<const std::uint32_t> indices;  ///< of all its samples, micro-batch after micro-batch
  std::span<const std::uint32_t> ends;     ///< where each micro-batch ends in `indices`, rank-major
};

}  // namespace lockstep::data
