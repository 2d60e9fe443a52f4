// Which rank has the least cost so far: a tournament among the ranks, each node the lesser of its two.
// Telling takes one load and changing a rank's cost a few minima without a branch, which is why this and not
// a heap.
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
        nodes_(2 * leaves_, kOut) {}

  /// Begins anew, with these costs.
  void fill(std::span<const double> costs) {
    for (std::size_t rank = 0; rank < leaves_; ++rank) {
      nodes_[leaves_ + rank] = rank < costs.size() ? key(rank, costs[rank]) : kOut;
    }
    for (std::size_t node = leaves_; --node > 0;)
      nodes_[node] = std::min(nodes_[2 * node], nodes_[2 * node + 1]);
  }

  bool empty() const { return nodes_[1] == kOut; }
  std::size_t least() const { return nodes_[1] & ((std::uint64_t{1} << rank_bits_) - 1); }

  /// `cost` must not be negative.
  void set(std::size_t rank, double cost) { change(rank, key(rank, cost)); }
  void take_out(std::size_t rank) { change(rank, kOut); }

 private:
  static constexpr std::uint64_t kOut = ~std::uint64_t{0};

  // Doubles that are not negative compare as their bits do; the last bits make room for the rank.
  std::uint64_t key(std::size_t rank, double cost) const {
    return (std::bit_cast<std::uint64_t>(cost) >> rank_bits_ << rank_bits_) | rank;
  }

  void change(std::size_t rank, std::uint64_t key) {
    std::size_t node = leaves_ + rank;
    nodes_[node] = key;
    while (node > 1) {
      const std::uint64_t sibling = nodes_[node ^ 1U];
      key = sibling < key ? sibling : key;
      node /= 2;
      nodes_[node] = key;
    }
  }

  std::size_t leaves_;
  unsigned rank_bits_;
  std::vector<std::uint64_t> nodes_;
};

}  // namespace lockstep::data
