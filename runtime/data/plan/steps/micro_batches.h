// Cuts a rank's share of a step into micro-batches under the cap: first-fit decreasing (Johnson,
// "Near-Optimal Bin Packing Algorithms", 1973), at most 11/9 of the fewest possible and one more.
//
// Threads: a MicroBatches belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class MicroBatches {
 public:
  explicit MicroBatches(std::uint64_t cap) : cap_(cap) {}

  /// Cuts the items at these places, longest first and none over the cap, and appends them to `indices`
  /// micro-batch by micro-batch, and where each ends to `ends`. The fullest one comes last: gradients travel
  /// during its backward.
  void cut(std::span<const Item> items, std::span<const std::uint32_t> places,
           std::vector<std::uint32_t>& indices, std::vector<std::uint32_t>& ends) {
    std::uint64_t tokens = 0;
    for (const std::uint32_t place : places) tokens += items[place].length;
    if (tokens <= cap_) {
      for (const std::uint32_t place : places) indices.push_back(items[place].index);
      if (!places.empty()) ends.push_back(static_cast<std::uint32_t>(indices.size()));
      return;
    }
    batch_of_.clear();
    free_.clear();
    sizes_.clear();
    for (const std::uint32_t place : places) {
      std::size_t batch = 0;
      while (batch < free_.size() && free_[batch] < items[place].length) ++batch;
      if (batch == free_.size()) {
        free_.push_back(cap_);
        sizes_.push_back(0);
      }
      free_[batch] -= items[place].length;
      ++sizes_[batch];
      batch_of_.push_back(static_cast<std::uint32_t>(batch));
    }
    // The first ones are the fullest.
    auto at = static_cast<std::uint32_t>(indices.size());
    for (std::size_t batch = sizes_.size(); batch-- > 0;) {
      at += std::exchange(sizes_[batch], at);
      ends.push_back(at);
    }
    indices.resize(at);
    for (std::size_t i = 0; i < places.size(); ++i) indices[sizes_[batch_of_[i]]++] = items[places[i]].index;
  }

 private:
  std::uint64_t cap_;
  std::vector<std::uint32_t> batch_of_;  // of each place
  std::vector<std::uint64_t> free_;      // of each micro-batch, tokens
  std::vector<std::uint32_t> sizes_;     // of each micro-batch, samples; then where its next sample goes
};

}  // namespace lockstep::data
