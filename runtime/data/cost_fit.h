// What a step costs, learnt from how long steps take: time = fixed + a * tokens + b * squares, where squares
// is the sum of L * L over the samples. Fitted to the last steps by iteratively reweighted least squares with
// Huber's weights, so that a step during which something else happened (a checkpoint, a page fault storm)
// hardly counts.
//
//   CostFit fit;
//   fit.add(tokens, squares, seconds);             // of this rank's step, without waiting for others
//   if (const auto fitted = fit.fit()) ...         // at a block's border: planner.change(fitted->cost,
//   speeds)
//
// Threads: a CostFit belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct FittedCost {
  Cost cost;                 ///< seconds per token, and per token squared
  double fixed = 0;          ///< seconds of a step that do not depend on its samples
  double error = 0;          ///< relative: median of |measured - fitted| / measured
  double error_a = 0;        ///< standard error of cost.a
  double error_b = 0;        ///< standard error of cost.b
  std::size_t steps = 0;     ///< it is fitted to
  std::size_t outliers = 0;  ///< of them, that count for less than half
};

class CostFit {
 public:
  /// Remembers so many steps; the newest replace the oldest.
  explicit CostFit(std::size_t most = 512);

  /// One step of one rank. Ignores what is not finite or not positive.
  void add(double tokens, double squares, double seconds);

  std::size_t steps() const { return steps_.size(); }

  /// Empty while the steps are too few or too alike to tell a from b. Neither is ever negative: what would be
  /// is 0, and the other fitted alone.
  std::optional<FittedCost> fit() const;

 private:
  struct Step {
    double tokens;
    double squares;
    double seconds;
  };
  std::size_t most_;
  std::size_t next_ = 0;
  std::vector<Step> steps_;
};

}  // namespace lockstep::data
