// Distributes a step's loads (samples, or padded micro-batches) over the ranks so that all take equally long. It
// assigns the costliest loads first (longest processing time: Graham, "Bounds on Multiprocessing Timing Anomalies",
// 1969), and then exchanges loads between the slowest ranks and the fastest. A rank's time is its cost divided by its
// speed.
//
// Threads: an object of these classes belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

/// Finds the rank with the lowest cost so far. It is a tournament tree: each node holds the lower of its two
/// children. It is faster than a heap: a search is one read, and a change of a cost is a few minima without
/// branches.
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

class RankBalancer {
 public:
  explicit RankBalancer(const PlanOptions& options);

  /// Assigns the loads, in descending order of cost, each to the rank whose time is lowest so far. `costs`
  /// must stay valid until the next assign().
  void assign(std::span<const double> costs);

  /// Assigns another load to the fastest rank, unless that would make it slower than the slowest one. Returns
  /// whether it did. After uneven().
  bool add_if_free(double cost);

  /// Exchanges loads until the slowest rank is close to the mean, or no exchange helps.
  void exchange();

  /// The loads of a rank as indices of `costs`, costliest first.
  std::span<const std::uint32_t> loads(std::size_t rank) const { return lists_[rank]; }

  /// Whether the slowest rank takes notably longer than the mean.
  bool uneven();
  /// Whether the fastest rank needs longer for a load of this cost than every rank needs for its share of `all`.
  bool outweighs_share(double cost, double all) const {
    return cost * speed_of_all_ > all * speed_of_fastest_;
  }

 private:
  struct Swap {
    double time;       // of the slower one of the two ranks after the swap
    std::size_t give;  // place in the list of the slower rank
    std::size_t take;  // place in the list of the faster rank; its size: none
  };
  using LoadList = std::vector<std::uint32_t>;

  double mean() const;
  bool improve(std::size_t from, std::size_t to, double good_enough);
  bool find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const;
  void order_ranks();

  std::size_t ranks_;
  std::vector<double> slowness_;  // mean speed / the rank's own
  double speed_of_all_;           // in the unit of speed_of_fastest_
  double speed_of_fastest_;
  std::span<const double> costs_;
  std::vector<double> times_;  // of each rank
  double longest_time_ = 0;    // of uneven()
  RankTree tree_;
  std::vector<LoadList> lists_;         // each rank's loads, costliest first
  std::vector<std::uint32_t> by_time_;  // ranks, slowest first
};

}  // namespace lockstep::data
