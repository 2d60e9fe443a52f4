// Makes steps whose mean lengths are as good as the same. Short samples decide how many samples a step has,
// and so its mean length, while they take little room: the others are fitted into micro-batches, which are
// dealt to the steps, and each short one then goes to the step whose mean length is the greatest.
//
// Threads: a LevelSteps belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/even_steps.h"
#include "runtime/data/plan/first_fit.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/random.h"

namespace lockstep::data {

class LevelSteps {
 public:
  explicit LevelSteps(const PlanOptions& options);

  /// Makes so many steps of all these samples, longest first and none over the cap: groups of items().
  /// `longest_short` is the length of the longest sample that is a short one. False: they do not fit,
  /// or are too few for a micro-batch to have some.
  bool make(std::span<const Item> samples, std::size_t steps, std::uint32_t longest_short, Random& random);

  std::vector<Item>& items() { return items_; }
  std::vector<std::vector<Group>>& steps() { return steps_; }

 private:
  enum class Rule {
    /// The step that has the most tokens to go for each sample to go, until all have as many of both. Room is
    /// used well, but there must be enough of it to be shared.
    by_need,
    /// The step whose mean length is the greatest.
    by_mean,
  };

  void deal_groups(std::size_t steps, Random& random);
  bool deal_short(std::span<const Item> shorts, Rule rule);
  double spread_of(std::span<const Item> shorts) const;
  void lay_out(std::span<const Item> shorts);
  bool leave_none_empty(std::vector<Group>& groups);

  std::uint64_t cap_;
  Cost cost_;
  std::size_t batches_;  // of a step
  FirstFit fit_;
  std::vector<Item> fitted_;
  std::vector<Group> groups_;
  std::vector<double> filled_;         // tokens of each micro-batch, step after step
  std::vector<std::size_t> place_of_;  // of each short sample: its micro-batch
  std::vector<std::size_t> best_;      // the same, as it is to be
  std::vector<Item> items_;
  std::vector<std::vector<Group>> steps_;
};

}  // namespace lockstep::data
