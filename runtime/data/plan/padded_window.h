// Length bucketing for padded batches: the samples of several steps are sorted together and cut into
// micro-batches of similar length and equal cost, and each of the steps gets some from every part of that
// order, longest to shortest. So rows of a micro-batch hardly differ, while the steps are more alike than
// chance would make them: sorting never reaches a step's mean. Fewer steps share where the budget asks for
// it; but where a step has so few micro-batches that it cannot be both full and random, not so few that a
// tenth of the fill is lost: there randomness gives way.
//
// Threads: a PaddedWindow belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/even_steps.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_sort.h"
#include "runtime/data/plan/padded_packer.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/random.h"
#include "runtime/data/plan/randomness_budget.h"

namespace lockstep::data {

class PaddedWindow {
 public:
  /// `capacity`: tokens of a step without padding.
  PaddedWindow(const PlanOptions& options, std::uint64_t capacity);

  /// Forgets what is left and what it has learnt of the samples' padding.
  void begin();

  /// No step is left: take() comes next.
  bool empty() const { return next_ == steps_.size(); }

  /// Takes the samples of some steps from the pool's front, and returns how many. `last`: nothing comes
  /// behind the pool, so that it must all go into steps.
  std::size_t take(std::span<const Item> pool, bool last, const RandomnessBudget& budget, Random& random);

  /// The next step, and its samples, longest first.
  StepView next(std::vector<Item>& samples);

  /// The step that these samples make alone, longest first; false where they are too many for one.
  bool pack_alone(const std::vector<Item>& samples, StepView& step);

  /// Hands over the samples of the steps that are left.
  void put_back(std::vector<Item>& left);

  /// Part of a step's capacity that padding leaves to samples, so far.
  double fill() const { return fill_; }

 private:
  std::size_t take_count(std::span<const Item> pool, std::size_t steps);
  std::size_t compose(std::span<const Item> pool, bool last, Random& random);
  double filled() const;

  std::size_t batches_;  // of a step
  std::size_t most_steps_;
  std::size_t window_ = 1;  // steps that share
  std::uint64_t capacity_;
  double fill_ = 1;
  double best_ = 0;  // part of their micro-batches that samples have filled, at most
  PaddedPacker packer_;
  LengthSort sort_;
  std::vector<Item> items_;                // of the window, longest first
  std::vector<std::vector<Group>> steps_;  // groups of items_
  std::size_t next_ = 0;
};

}  // namespace lockstep::data
