// Composes an epoch's steps one after the other. Samples are drawn in the epoch's order into a pool; each
// step takes from the pool's front, within the randomness budget, and what does not fit waits at the front
// for the next. An outlier, a sample that costs more than a whole rank's fair share of a step, makes every
// other rank wait whatever the partition: it waits for other outliers, until each rank can have one.
//
// Threads: an EpochPlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/order.h"
#include "runtime/data/planner.h"
#include "runtime/data/random.h"
#include "runtime/data/randomness_budget.h"
#include "runtime/data/step_packer.h"

namespace lockstep::data {

class EpochPlanner {
 public:
  /// `lengths` must outlive the planner; all are in 1..cap.
  EpochPlanner(std::span<const std::uint32_t> lengths, const PlanOptions& options);

  /// Appends the next step to the plan. False when the epoch is over.
  bool next_step(Plan& plan);

 private:
  void draw(std::uint64_t tokens);
  bool take_next(Item& item);
  std::size_t front(std::uint64_t tokens) const;
  void release_outliers();
  void keep_within_budget();
  static void exchange_short_for_long(std::vector<Item>& shorts, std::size_t shorts_first,
                                      std::vector<Item>& longs, std::size_t longs_first, std::size_t count);
  void pack();
  void pack_padded();
  void top_up(std::uint64_t most, bool lengthen);
  std::uint64_t target() const;

  std::span<const std::uint32_t> lengths_;
  PlanOptions options_;
  std::uint64_t capacity_;  // tokens of a step
  double fill_;             // of the capacity, that a step takes from the pool
  EpochOrder order_;
  StepPacker packer_;
  RandomnessBudget budget_;
  Random random_;
  double outlier_cost_;
  std::uint64_t tokens_left_ = 0;  // not yet in a step

  std::vector<SampleId> group_;
  std::size_t group_next_ = 0;
  std::vector<Item> pool_;
  std::uint64_t pool_tokens_ = 0;
  std::vector<Item> outliers_;

  // The step being made.
  std::vector<Item> chosen_;
  std::size_t pinned_ = 0;  // of chosen_, at its front: outliers that were released into this step
  std::vector<Item> left_;
  bool full_step_ = true;
};

}  // namespace lockstep::data
