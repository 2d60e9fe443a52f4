// Shares a step's loads (samples, or padded micro-batches) among the ranks so that all take equally long:
// longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), then exchanges
// between the slowest ranks and the fastest. A rank's time is its cost divided by its speed.
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

  /// Deals loads of these costs, greatest first: each to the rank whose time is least so far. `costs` must
  /// stay where it is until the next deal().
  void deal(std::span<const double> costs);

  /// Whether a load more makes the step no slower: the rank whose time is least has room for it below the
  /// slowest one. If so, that rank is taken to have it.
  bool add_if_free(double cost);

  /// Exchanges loads until the slowest rank is within a small fraction of the mean, or no exchange helps.
  void exchange();

  /// The loads of a rank as places in `costs`, greatest first. After exchange().
  std::span<const std::uint32_t> loads(std::size_t rank) const {
    return std::span(by_rank_).subspan(begins_[rank], begins_[rank + 1] - begins_[rank]);
  }

  /// Whether the slowest rank takes notably longer than the mean one.
  bool uneven();
  /// Whether one load of this cost takes the fastest rank longer than an equal share of `all` takes each
  /// rank.
  bool outweighs_share(double cost, double all) const { return cost * speed_of_all_ > all * fastest_; }

 private:
  struct Swap {
    double slower;     // of the two ranks' times after it
    std::size_t give;  // in the list of the slower rank
    std::size_t take;  // in that of the faster; its size: nothing
  };
  using List = std::vector<std::uint32_t>;

  double mean() const;
  void exchange_lists(double limit);
  bool improve(std::size_t from, std::size_t to, double good_enough);
  bool find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const;
  void order_ranks();
  void group_by_rank();

  std::size_t ranks_;
  std::vector<double> slowness_;  // mean speed / the rank's own
  double speed_of_all_;           // in the unit of fastest_
  double fastest_;
  std::span<const double> costs_;
  std::vector<std::uint32_t> rank_of_;  // of each load
  std::vector<double> times_;           // of each rank
  double slowest_ = 0;
  RankTree tree_;
  std::vector<List> lists_;             // each rank's loads, greatest first, while they are exchanged
  std::vector<std::uint32_t> by_time_;  // ranks, slowest first
  std::vector<std::uint32_t> by_rank_;
  std::vector<std::uint32_t> begins_;
};

}  // namespace lockstep::data
