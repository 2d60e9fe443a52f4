// Composes the steps of one block, one after the other. Each takes samples from the front of what is left, in
// the order given, within the randomness budget; what does not fit waits at the front for the next. Outliers
// wait for each other (outlier_room.h). Where micro-batches hold few samples, many of them long, or are
// padded, a window makes several steps together (fit_window.h, padded_window.h).
//
// Threads: a BlockPlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/fit_window.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_sort.h"
#include "runtime/data/plan/outlier_room.h"
#include "runtime/data/plan/padded_window.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/random.h"
#include "runtime/data/plan/randomness_budget.h"
#include "runtime/data/plan/step_packer.h"

namespace lockstep::data {

class BlockPlanner {
 public:
  /// `options` must have been checked (planner.h).
  explicit BlockPlanner(const PlanOptions& options);
  BlockPlanner(const BlockPlanner&) = delete;
  BlockPlanner& operator=(const BlockPlanner&) = delete;

  struct Place {
    std::size_t block = 0;
    /// Nothing comes after it, so its samples must all go into steps; otherwise what does not fill a step is
    /// left over, and outliers that wait.
    bool last = true;
    /// What the steps before left of the randomness budget.
    double saved = 0;
    /// Of the items, at their front: those left over from the block before.
    std::size_t carried = 0;
    /// About so many samples come in later blocks.
    std::size_t behind = 0;
  };

  /// Begins a block of these items, all with lengths in 1..cap. The same items and place give the same steps.
  void begin(std::vector<Item> items, const Place& place);

  /// Makes the next step. False when the block is over.
  bool next_step(StepView& step);

  /// As next_step, but only deals the step's samples, into `packer`, and says which rank is the first one:
  /// exchange() and finish() are the caller's, and nothing here waits for them. False, and nothing done, when
  /// the block is over or the step is not one of the full ones.
  bool deal_step(StepPacker& packer, std::size_t& first);

  /// Tokens of a step whose slowest rank is full, and the part of it that a step takes.
  std::uint64_t capacity() const { return capacity_; }
  double fill() const { return options_.padded ? padded_.fill() : fill_; }

  /// Tokens that may be left over of a block that is not the last.
  double most_left() const;

  /// What the steps so far have left of the randomness budget.
  double saved() const { return budget_.saved(); }

  /// What is left over when the block is over, in order. Hands the items' memory back for begin().
  std::vector<Item> take_left();

 private:
  bool is_over() const;
  void book();
  bool leave_little_room(std::span<const Item> items) const;
  std::uint64_t target() const;
  double steps_left() const;
  void compose();
  void choose(std::size_t most);
  void take_front(std::uint64_t tokens);
  void fill_gap(std::uint64_t tokens, std::uint64_t most);
  void put_back(std::span<const Item> items);
  void take_window(std::size_t least);
  bool keep_within_budget();
  void expect();
  void pack();
  bool may_add(std::uint32_t length) const;
  void top_up(std::uint64_t most, bool lengthen);
  void fit();
  void next_fitted();
  bool end_with(StepView& step);

  PlanOptions options_;
  std::uint64_t capacity_;  // tokens of a step whose slowest rank is full
  double share_;            // of the capacity, in cost: a rank's part of a full step, at mean speed
  double fill_;             // of the capacity, that a step takes from the pool
  StepPacker own_packer_;
  StepPacker* packer_;  // of the step that is composed
  PaddedWindow padded_;
  FitWindow fitted_;
  bool fits_ = false;  // fitted_ makes this block's steps
  LengthSort sort_;
  RandomnessBudget budget_;
  Random random_;
  OutlierRoom outliers_;
  bool last_ = true;
  double behind_ = 0;  // samples in the blocks to come, about

  std::vector<Item> items_;  // what is left begins at next_
  std::size_t next_ = 0;
  std::uint64_t tokens_left_ = 0;  // outliers that wait included
  std::size_t patience_ = 0;       // steps before outliers are tried again

  // The step being made.
  std::vector<Item> chosen_;
  std::size_t pinned_ = 0;  // of chosen_, at its front: outliers that were released into this step
  std::size_t due_ = 0;     // outliers that must not wait for another step
  std::vector<Item> left_;
  std::vector<Item> window_;
  std::vector<Item> first_;       // of the block, to be repeated in the end
  std::vector<Item> candidates_;  // index: the place in window_
  bool full_step_ = true;
};

}  // namespace lockstep::data
