// Fills micro-batches that hold few samples: what the next samples that come would leave free in each adds up
// to a good part of a step. The samples of several steps are fitted together (first_fit.h), and the
// micro-batches dealt to the steps. The shortest samples may so end up in few micro-batches and few steps:
// where that leaves the randomness budget they are dealt to the steps for themselves (level_steps.h), which
// may take some more steps. Randomness gives way where that would be a tenth more.
//
// Threads: a FitWindow belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/even_steps.h"
#include "runtime/data/plan/first_fit.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_sort.h"
#include "runtime/data/plan/level_steps.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/random.h"
#include "runtime/data/plan/randomness_budget.h"
#include "runtime/data/plan/rank_tree.h"
#include "runtime/data/plan/step_packer.h"

namespace lockstep::data {

class FitWindow {
 public:
  /// `options` must be those of a plan that is not padded and of equal ranks.
  explicit FitWindow(const PlanOptions& options);

  /// Forgets what is left.
  void begin();

  /// No step is left: take() comes next.
  bool empty() const { return next_ == steps_.size(); }

  /// Makes some steps of the pool's front and returns how many samples it took; those of them that are in no
  /// step are appended to `left`. `last`: nothing comes behind the pool, so that it must all go into steps.
  std::size_t take(std::span<const Item> pool, bool last, const RandomnessBudget& budget, Random& random,
                   std::vector<Item>& left);

  /// Puts the next step into the packer.
  void next(StepPacker& packer);

  /// Appends the samples of the steps that are left.
  void put_back(std::vector<Item>& left);

 private:
  std::size_t count_for(std::span<const Item> pool, bool last, bool& all) const;
  void make_steps(bool all, Random& random);
  bool leaves_random(const RandomnessBudget& budget) const;
  std::size_t level(std::span<const Item> pool, bool all, const RandomnessBudget& budget, Random& random);

  std::size_t ranks_;
  std::size_t accumulate_;
  std::size_t batches_;  // of a step
  std::uint64_t cap_;
  std::size_t window_;  // steps that are fitted together
  LengthSort sort_;
  FirstFit fit_;
  LevelSteps level_;
  std::size_t looseness_ = 0;  // see level()
  RankTree open_;

  std::vector<Item> sorted_;
  std::vector<Item> items_;  // group after group
  std::vector<Group> groups_;
  std::vector<std::vector<Group>> steps_;
  std::vector<Item> rest_;  // of the window, in no step
  std::size_t next_ = 0;
};

}  // namespace lockstep::data
