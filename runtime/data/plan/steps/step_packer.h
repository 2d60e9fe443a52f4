// Takes the samples of the next step in the epoch's order and packs them. It takes samples until the token
// budget is full. If one of them costs more than a rank's share, the other ranks would wait: the step then
// takes more samples, as long as they cost no time, up to its stretch. If the step's tokens are a
// promise (step_tokens), it fills its budget with samples further ahead that fit. Packing distributes the samples over
// the ranks (rank_balancer.h) and cuts each rank's share into micro-batches.
//
// Threads: a StepPacker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/item.h"
#include "runtime/data/plan/steps/micro_batches.h"
#include "runtime/data/plan/steps/rank_balancer.h"

namespace lockstep::data {

class StepPacker {
 public:
  explicit StepPacker(const PlanOptions& options);

  /// Takes the next step from the front of `pool`, for pack(), and returns its number of items. 0: the pool
  /// is too short and needs more items. `last` says that no items follow, so that the last step takes all
  /// remaining ones. Items of length 0 belong to the step but are not packed. With `ahead`, the step may also
  /// take items after those; `ahead` gets their places in the pool, and later calls must not get them again
  /// (set their length to 0).
  std::size_t take(std::span<const Item> pool, bool last, std::vector<std::size_t>* ahead = nullptr);

  /// The number of samples taken, without those of length 0.
  std::size_t samples() const { return items_.size(); }

  /// Repeats the samples taken, in their order, until there are `count`.
  void repeat_samples(std::size_t count);

  /// Packs the samples taken. The rank that gets the longest one depends on the step's number.
  StepView pack(std::uint64_t step);

 private:
  struct Front;
  bool in_budget(const Front& front, const Item& next, double cost) const;
  bool below_stretch(const Front& front) const;
  bool has_outlier(const Front& front) const;
  std::size_t count_small_rest(std::span<const Item> rest, std::uint64_t tokens) const;
  bool find_ahead(const Front& front, bool last, std::vector<std::size_t>& ahead) const;
  void assign_items();
  void assign_groups();
  void add_groups(std::span<const std::uint32_t> loads);
  void add_empty_micro_batches();

  PlanOptions options_;
  std::uint64_t budget_;
  double max_tokens_;  // of a step that stretches
  double per_budget_;  // 1 / budget_
  bool may_stretch_;
  bool promises_tokens_;  // fills steps that do not stretch
  LengthSort sort_;
  RankBalancer balancer_;
  MicroBatches micro_batches_;
  PaddedCut padded_cut_;
  std::vector<Item> items_;                   // of the step, longest first
  std::vector<PaddedCut::ItemGroup> groups_;  // of items_, costliest first
  std::vector<double> costs_;                 // of items_, or of groups_ if padded
  std::vector<std::uint32_t> indices_;        // of the StepView, like the next two
  std::vector<std::uint32_t> batch_ends_;
  std::vector<std::uint32_t> rank_ends_;
  std::vector<std::uint32_t> equal_ends_;  // batch_ends_ with empty micro-batches
};

}  // namespace lockstep::data
