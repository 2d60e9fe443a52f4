// Composes the steps of one block, one after the other. Each takes samples from the front of what is left, in
// the order given, within the randomness budget; what does not fit waits at the front for the next. An
// outlier, a sample that costs more than a whole rank's fair share of a step, makes every other rank wait
// whatever the partition: it waits for other outliers, until each rank can have one.
//
// Threads: a BlockPlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/item.h"
#include "runtime/data/length_sort.h"
#include "runtime/data/padded_window.h"
#include "runtime/data/planner.h"
#include "runtime/data/random.h"
#include "runtime/data/randomness_budget.h"
#include "runtime/data/step_packer.h"

namespace lockstep::data {

class BlockPlanner {
 public:
  /// `options` must have been checked (planner.h).
  explicit BlockPlanner(const PlanOptions& options);
  BlockPlanner(const BlockPlanner&) = delete;
  BlockPlanner& operator=(const BlockPlanner&) = delete;

  /// Begins a block of these items, all with lengths in 1..cap. `last`: nothing comes after it, so its
  /// samples must all go into steps; otherwise what does not fill a step is left over. The same items and
  /// `block` give the same steps.
  void begin(std::vector<Item> items, std::size_t block, bool last, double saved = 0);

  /// Makes the next step. False when the block is over.
  bool next_step(StepView& step);

  /// As next_step, but only deals the step's samples, into `packer`, and says which rank is the first one:
  /// exchange() and finish() are the caller's, and nothing here waits for them. False, and nothing done, when
  /// the block is over or the step is not one of the full ones.
  bool deal_step(StepPacker& packer, std::size_t& first);

  /// Tokens of a step whose slowest rank is full, and the part of it that a step takes.
  std::uint64_t capacity() const { return capacity_; }
  double fill() const { return options_.padded ? padded_.fill() : fill_; }

  /// What the steps so far have left of the randomness budget.
  double saved() const { return budget_.saved(); }

  /// What is left over when the block is over, in order. Hands the items' memory back for begin().
  std::vector<Item> take_left();

 private:
  bool is_over() const;
  void book();
  bool is_outlier(const Item& item) const;
  std::size_t most_waiting() const;
  std::uint64_t target() const;
  void find_outliers();
  void compose();
  void choose(std::size_t most);
  void release_outliers(std::size_t count);
  void take_front(std::uint64_t tokens);
  void fill_gap(std::uint64_t tokens, std::uint64_t most);
  void put_back(std::span<const Item> items);
  void take_window(std::size_t least);
  bool keep_within_budget();
  void exchange_short_for_long(std::vector<Item>& shorts, std::size_t shorts_first, std::vector<Item>& longs,
                               std::size_t longs_first, std::size_t change);
  void pack();
  void top_up(std::uint64_t most, bool lengthen);
  void fit();
  bool end_with(StepView& step);

  PlanOptions options_;
  std::uint64_t capacity_;  // tokens of a step whose slowest rank is full
  double share_;            // of the capacity, in cost: a rank's part of a full step, at mean speed
  double fill_;             // of the capacity, that a step takes from the pool
  StepPacker own_packer_;
  StepPacker* packer_;  // of the step that is composed
  PaddedWindow padded_;
  LengthSort sort_;
  RandomnessBudget budget_;
  Random random_;
  std::uint32_t longest_common_ = 0;  // what is longer is an outlier
  bool last_ = true;

  std::vector<Item> items_;  // what is left begins at next_
  std::size_t next_ = 0;
  std::uint64_t tokens_left_ = 0;  // outliers that wait included
  std::vector<Item> outliers_;     // that wait
  std::size_t patience_ = 0;       // steps before they are tried again

  // The step being made.
  std::vector<Item> chosen_;
  std::size_t pinned_ = 0;  // of chosen_, at its front: outliers that were released into this step
  std::vector<Item> left_;
  std::vector<Item> window_;
  std::vector<Item> first_;       // of the block, to be repeated in the end
  std::vector<Item> candidates_;  // index: the place in window_
  bool full_step_ = true;
};

}  // namespace lockstep::data
