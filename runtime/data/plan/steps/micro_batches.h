// Cuts a rank's share of a step into micro-batches under the cap. It uses first fit in descending order of
// length (Johnson, "Near-Optimal Bin Packing Algorithms", 1973), which needs at most 11/9 of the minimum
// and one more.
//
// Threads: a MicroBatches belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <bit>
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

  /// Cuts the items at these places, which must be sorted longest first and none over the cap. Appends
  /// their indices to `indices`, micro-batch by micro-batch, and the end of each micro-batch to `ends`. The
  /// fullest one comes last, because gradients travel during its backward.
  void cut(std::span<const Item> items, std::span<const std::uint32_t> places,
           std::vector<std::uint32_t>& indices, std::vector<std::uint32_t>& ends) {
    std::uint64_t tokens = 0;
    for (const std::uint32_t place : places) tokens += items[place].length;
    if (tokens <= cap_) {
      for (const std::uint32_t place : places) indices.push_back(items[place].index);
      if (!places.empty()) ends.push_back(static_cast<std::uint32_t>(indices.size()));
      return;
    }
    // At most one micro-batch stays half empty, which bounds their number.
    const std::size_t leaves = std::bit_ceil(static_cast<std::size_t>(2 * tokens / cap_ + 1));
    free_tokens_.assign(2 * leaves, cap_);
    batch_of_.clear();
    sizes_.clear();
    for (const std::uint32_t place : places) {
      std::size_t node = 1;
      while (node < leaves) node = 2 * node + (free_tokens_[2 * node] < items[place].length ? 1 : 0);
      const std::size_t batch = node - leaves;
      if (batch == sizes_.size()) sizes_.push_back(0);
      ++sizes_[batch];
      batch_of_.push_back(static_cast<std::uint32_t>(batch));
      free_tokens_[node] -= items[place].length;
      while ((node /= 2) > 0)
        free_tokens_[node] = std::max(free_tokens_[2 * node], free_tokens_[2 * node + 1]);
    }
    // The first micro-batches are the fullest.
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
  // A binary tree. Its leaves are the free tokens of each micro-batch, opened or not; an inner node is the
  // maximum of its two children.
  std::vector<std::uint64_t> free_tokens_;
  std::vector<std::uint32_t> sizes_;  // of each micro-batch, samples; then where its next sample goes
};

}  // namespace lockstep::data
