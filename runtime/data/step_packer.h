// Deals the samples of one optimizer step to its micro-batches: none over the cap, the ranks' costs as equal
// as the samples allow.
//
// Threads: a StepPacker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/data/planner.h"

namespace lockstep::data {

/// A sample as the planner handles it.
struct Item {
  SampleId id;
  std::uint32_t length;
};

/// Longest first; equal lengths by id, so that the order is one and the same everywhere.
inline bool longer(const Item& x, const Item& y) {
  return x.length != y.length ? x.length > y.length : x.id < y.id;
}

class StepPacker {
 public:
  explicit StepPacker(const PlanOptions& options);

  /// Begins an empty step.
  void clear();

  /// Places items, longest first: each with the rank whose cost is least and that has room. A rank that costs
  /// more than `enough` gets no more. Appends to `left` what fits nowhere.
  void place(std::span<const Item> items, double enough, std::vector<Item>& left);

  /// Cuts items, longest first, into padded micro-batches of least possible greatest cost. Returns how many
  /// micro-batches that would take; the step is made only when it has so many.
  std::size_t place_padded(std::span<const Item> items);

  /// Moves and swaps samples between the costliest rank and others until the greatest cost is within a small
  /// fraction of the mean, or no exchange lowers it.
  void exchange();

  std::size_t micro_batches() const { return batches_.size(); }
  /// Of what was placed.
  std::uint64_t tokens() const;
  std::size_t samples() const;

  /// Whether the costliest rank holds a single sample and costs more than the mean of a step filled to the
  /// cap would be: nothing that is done to the other ranks then makes the step longer.
  bool greatest_is_one_sample() const;

  /// Tokens that still fit into the micro-batch with the most room.
  std::uint64_t most_room() const;

  /// Places one item in the fullest micro-batch that has room for it; only with a rank that does not become
  /// the costliest by it, unless the step may `lengthen`. False when there is none.
  bool place_where_it_fits(const Item& item, bool lengthen);

  /// Appends the step to the plan; `first` is the rank that gets what was dealt first.
  void append_to(Plan& plan, std::size_t first);

 private:
  struct MicroBatch {
    std::vector<Item> items;
    std::uint64_t tokens = 0;
  };
  struct Place {
    std::size_t micro_batch;
    std::size_t index;
  };
  struct Change {
    double cost;  // the greater of the two ranks' costs after it
    Place give;
    Place take;  // take.index == kNothing: a move, not a swap
  };
  using ByKey = std::pair<std::uint64_t, std::size_t>;

  static constexpr std::size_t kNothing = ~std::size_t{0};

  std::span<MicroBatch> of_rank(std::size_t rank) {
    return std::span(batches_).subspan(rank * accumulate_, accumulate_);
  }
  std::size_t roomiest(std::size_t rank) const;
  std::uint64_t room(std::size_t micro_batch) const { return cap_ - batches_[micro_batch].tokens; }
  void put(std::size_t micro_batch, const Item& item);
  std::size_t cut(std::span<const Item> items, double limit, bool keep);
  bool improve(std::size_t from, std::size_t to, Change& best) const;
  void apply(std::size_t from, std::size_t to, const Change& change);

  std::size_t ranks_;
  std::size_t accumulate_;
  std::uint64_t cap_;
  Cost cost_;
  std::vector<MicroBatch> batches_;                          // rank-major
  std::vector<double> costs_;                                // of each rank
  std::vector<std::pair<double, std::size_t>> open_;         // heap: cost, rank
  std::vector<std::pair<std::uint64_t, std::size_t>> full_;  // heap: room, rank
  std::vector<std::size_t> by_cost_;
};

}  // namespace lockstep::data
