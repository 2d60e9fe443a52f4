// Takes the next step from samples in the epoch's order: those that fill its budget of tokens, and where one
// of them makes some rank slower than the others whatever they get, as many more as cost no time, up to the
// step's stretch. Then shares them among the ranks (rank_balancer.h) and cuts each share into micro-batches.
//
// Threads: a StepPacker belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/item.h"
#include "runtime/data/plan/steps/length_sort.h"
#include "runtime/data/plan/steps/micro_batches.h"
#include "runtime/data/plan/steps/padded_cut.h"
#include "runtime/data/plan/steps/rank_balancer.h"

namespace lockstep::data {

class StepPacker {
 public:
  explicit StepPacker(const PlanOptions& options);

  /// Takes the next step from the front of `pool` and returns how many items that are; they are what pack()
  /// packs. 0: the pool is too short to tell, more items are needed. `last`: none will come, so the last step
  /// takes what is left. Items of length 0 belong to the step but are not packed.
  std::size_t take(std::span<const Item> pool, bool last);

  /// The number of samples that take() took, those of length 0 not counted.
  std::size_t samples() const { return items_.size(); }

  /// Uses the samples that were taken again, in turn, until there are `count`.
  void repeat_samples(std::size_t count);

  /// Packs what was taken. `step` is the step's number: which rank gets the longest sample changes with it.
  StepView pack(std::uint64_t step);

 private:
  std::size_t small_rest(std::span<const Item> rest, std::uint64_t tokens) const;
  void deal_items(std::span<const Item> items);
  void deal_padded();
  void add_groups(std::span<const std::uint32_t> loads);
  void add_empty_micro_batches();

  PlanOptions options_;
  std::uint64_t budget_;
  double max_tokens_;  // when stretched
  double per_budget_;  // 1 / budget_
  bool may_stretch_;
  LengthSort sort_;
  RankBalancer balancer_;
  MicroBatches micro_batches_;
  PaddedCut padded_cut_;
  std::vector<Item> items_;               // of the step, longest first
  std::vector<PaddedCut::Group> groups_;  // of items_, costliest first
  std::vector<double> costs_;             // of what is dealt: items_ or groups_
  std::vector<std::uint32_t> indices_;
  std::vector<std::uint32_t> batch_ends_;
  std::vector<std::uint32_t> rank_ends_;
  std::vector<std::uint32_t> equal_ends_;
};

}  // namespace lockstep::data
