// Finds the rank with the lowest cost so far. It is a tournament tree: each node holds the lower of its two
// children. It is faster than a heap: a search is one read, and a change of a cost is a few minima without
// branches.
//
// Threads: a RankTree belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

class RankTree {
 public:
  explicit RankTree(std::size_t ranks)
      : leaves_(std::bit_ceil(ranks)),
        rank_bits_(static_cast<unsigned>(std::bit_width(leaves_ - 1))),
        nodes_(2 * leaves_, kUnused) {}

  /// Replaces all costs.
  void fill(std::span<const double> costs) {
    for (std::size_t rank = 0; rank < leaves_; ++rank) {
      nodes_[leaves_ + rank] = rank < costs.size() ? key(rank, costs[rank]) : kUnused;
    }
    for (std::size_t node = leaves_; --node > 0;)
      nodes_[node] = std::min(nodes_[2 * node], nodes_[2 * node + 1]);
  }

  std::size_t cheapest() const { return nodes_[1] & ((std::uint64_t{1} << rank_bits_) - 1); }

  /// `cost` must not be negative.
  void set(std::size_t rank, double cost) {
    std::uint64_t lower = key(rank, cost);
    std::size_t node = leaves_ + rank;
    nodes_[node] = lower;
    while (node > 1) {
      const std::uint64_t sibling = nodes_[node ^ 1U];
      lower = sibling < lower ? sibling : lower;
      node /= 2;
      nodes_[node] = lower;
    }
  }

 private:
  static constexpr std::uint64_t kUnused = ~std::uint64_t{0};  // leaves beyond the last rank

  // Doubles that are not negative compare like their bits. The rank replaces the last bits.
  std::uint64_t key(std::size_t rank, double cost) const {
    return (std::bit_cast<std::uint64_t>(cost) >> rank_bits_ << rank_bits_) | rank;
  }

  std::size_t leaves_;
  unsigned rank_bits_;
  std::vector<std::uint64_t> nodes_;
};

}  // namespace lockstep::data
