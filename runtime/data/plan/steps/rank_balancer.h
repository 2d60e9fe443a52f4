// Distributes a step's loads (samples, or padded micro-batches) over the ranks so that all take equally long. It
// assigns the costliest loads first (longest processing time: Graham, "Bounds on Multiprocessing Timing Anomalies",
// 1969), and then exchanges loads between the slowest ranks and the fastest. A rank's time is its cost divided by its
// speed.
//
// Threads: a RankBalancer belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/rank_tree.h"

namespace lockstep::data {

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
