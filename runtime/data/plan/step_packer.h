// Deals the samples of one optimizer step to its micro-batches: none over the cap, the ranks' costs as equal
// as the samples allow. Longest first to the rank with the least so far, then exchanges between the costliest
// ranks and the cheapest.
//
// A rank's cost is divided by its speed, so that what is balanced is time.
//
// Threads: a StepPacker belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/data/plan/item.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/rank_tree.h"

namespace lockstep::data {

class StepPacker {
 public:
  explicit StepPacker(const PlanOptions& options);

  /// Begins an empty step.
  void clear();

  /// Places items, longest first: each with the rank whose time is least and that has room. A rank whose time
  /// is above `enough` gets no more. Appends to `left` what fits nowhere. May be called again to add to the
  /// step.
  void deal(std::span<const Item> items, double enough, std::vector<Item>& left);

  /// Places one item in the fullest micro-batch that has room for it; only with a rank that does not become
  /// the slowest by it, unless the step may `lengthen`. False when there is none.
  bool place_where_it_fits(const Item& item, bool lengthen);

  /// Samples from which fit() may choose: all of `window`, longest first by `order`, which names their
  /// places.
  struct Choice {
    std::span<Item> window;
    std::vector<Item>& order;
  };

  /// Exchanges samples for others, and adds some, so that each micro-batch comes as near to `wanted` tokens
  /// as it can: what few samples leave free in a micro-batch, the next sample that comes rarely fills. What
  /// is taken gets the length 0 in the window; what was taken out is appended to `out`. `may` says whether
  /// the step may have so many tokens and samples.
  void fit(Choice choice, std::uint64_t wanted, std::vector<Item>& out,
           const std::function<bool(std::uint64_t tokens, std::size_t samples)>& may);

  /// Places items in a micro-batch, which must have room for them.
  void place(std::span<const Item> items, std::size_t batch);

  /// Ends placing, and swaps samples between the slowest ranks and the fastest until the greatest time is
  /// within a small fraction of the mean, or no exchange lowers it.
  void exchange();
  /// After exchange(): deal() and the like go on where that left the samples.
  void go_on();

  /// The step; `first` is the rank that gets what was dealt first. After exchange().
  StepView finish(std::size_t first);

  std::size_t micro_batches() const { return batch_tokens_.size(); }

  /// Of what was placed.
  std::uint64_t tokens() const { return tokens_; }
  std::size_t samples() const { return placed_.size(); }

  template <typename Use>
  void for_each(Use&& use) const {
    for (const Placed& item : placed_) use(Item{item.index, item.length});
  }

  /// Whether the slowest rank holds a single sample and takes longer than the mean: nothing that is done to
  /// the other ranks then makes the step longer.
  bool greatest_is_one_sample() const;

  /// Whether every micro-batch has a sample.
  bool all_used() const { return *std::min_element(batch_tokens_.begin(), batch_tokens_.end()) > 0; }

  /// Tokens that still fit into the micro-batch with the most room.
  std::uint64_t most_room() const;

  double cost(std::uint32_t length) const {
    const auto tokens = static_cast<double>(length);
    return tokens * (a_ + b_ * tokens);
  }

 private:
  struct Placed {
    std::uint32_t index;
    std::uint32_t length;
    std::uint32_t batch;
  };
  // What to exchange: an item of the slower rank for one of the faster, or for nothing.
  struct Swap {
    double greatest;  // of the two ranks' times after it
    std::size_t give;
    std::size_t take;
    std::uint32_t into;  // the micro-batch that gets what is given
  };

  std::size_t roomiest(std::size_t rank) const;
  std::uint64_t room(std::size_t batch) const { return cap_ - batch_tokens_[batch]; }
  void put(const Item& item, std::size_t rank, std::size_t batch);
  bool fit_batch(std::size_t batch, std::span<const std::uint32_t> held, Choice& choice, std::uint64_t wanted,
                 std::vector<Item>& out, const std::function<bool(std::uint64_t, std::size_t)>& may);
  void reopen(std::uint32_t length);
  void group_by_rank();
  bool improve(std::size_t from, std::size_t to, double good_enough);
  bool find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const;
  void apply(std::size_t from, std::size_t to, const Swap& swap);
  std::span<Placed> of_rank(std::size_t rank) {
    return std::span(by_rank_).subspan(begins_[rank], counts_[rank]);
  }
  std::span<const Placed> of_rank(std::size_t rank) const {
    return std::span(by_rank_).subspan(begins_[rank], counts_[rank]);
  }
  void insert_longest_first(std::size_t rank, std::size_t hole, const Placed& item);
  void order_ranks();

  std::size_t ranks_;
  std::size_t accumulate_;
  std::uint64_t cap_;
  double a_;
  double b_;
  std::vector<double> slowness_;  // 1 / the rank's share of the speed, the mean rank's being 1
  bool rotate_;                   // ranks are all alike

  std::vector<Placed> placed_;
  bool sorted_ = true;  // placed_ is longest first
  std::uint64_t tokens_ = 0;
  std::vector<std::uint64_t> batch_tokens_;
  std::vector<double> times_;  // of each rank
  RankTree open_;
  std::vector<std::size_t> closed_;  // ranks without room for the last item
  std::uint64_t closed_room_ = 0;    // the most that one of them has

  // For the exchanges: the ranks' samples, longest first, with room for more behind each rank's.
  std::vector<Placed> by_rank_;
  std::vector<std::size_t> begins_;
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> limits_;
  std::vector<std::uint32_t> by_time_;
  std::vector<std::uint32_t> indices_;
  std::vector<std::uint32_t> ends_;
};

}  // namespace lockstep::data
