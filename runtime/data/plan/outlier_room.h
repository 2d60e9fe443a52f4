// Where outliers wait for company. An outlier, a sample that costs more than a whole rank's fair share of a
// step, makes every other rank wait whatever the partition; where each rank has one, none waits. But what
// waits is missing from the steps before and too much for those behind: no more may wait than the steps to
// come can take within the randomness budget, and what waits is given out evenly before the epoch ends.
//
// Threads: an OutlierRoom belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/data/plan/item.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/randomness_budget.h"

namespace lockstep::data {

class OutlierRoom {
 public:
  explicit OutlierRoom(const PlanOptions& options);

  /// Empties the room for samples like these. `share`: what a rank's part of a step holds of the cap, in
  /// tokens; `step`: what a step takes.
  void begin(std::span<const Item> items, const RandomnessBudget& budget, double share, double step);

  /// Looks at the steps to come, so many: says how many outliers may wait, and how many are due now.
  void look_ahead(double steps, const RandomnessBudget& budget);

  /// Whether there may be any.
  bool any() const { return longest_common_ < std::numeric_limits<std::uint32_t>::max(); }
  /// Whether the sample is to wait.
  bool takes(const Item& item) const { return is_outlier(item) && waiting_.size() < most_; }
  bool is_outlier(const Item& item) const { return item.length > longest_common_; }
  bool full() const { return waiting_.size() >= most_; }

  /// Of all that may ever wait.
  std::uint64_t most_tokens() const { return none_ ? 0 : kMostWaiting * ranks_ * cap_; }
  std::size_t size() const { return waiting_.size(); }
  std::uint64_t tokens() const { return tokens_; }
  /// So many cannot wait for a later step.
  std::size_t due() const { return due_; }

  void add(const Item& item);
  /// Adds the `count` greatest to `out`.
  void release(std::size_t count, std::vector<Item>& out);

 private:
  // Outliers that may wait at the same time, for each rank.
  static constexpr std::size_t kMostWaiting = 2;

  double strays(double count, const RandomnessBudget& budget) const;

  Cost cost_;
  std::uint64_t cap_;
  std::size_t ranks_;
  bool none_;  // are outliers: nothing is gained by waiting
  std::uint32_t longest_common_ = std::numeric_limits<std::uint32_t>::max();
  double common_mean_ = 1;  // of the samples that are none
  double step_ = 1;
  std::size_t most_ = 0;
  std::size_t due_ = 0;
  std::vector<Item> waiting_;
  std::uint64_t tokens_ = 0;
};

}  // namespace lockstep::data
