// Fits the cost of samples to the measured times of steps: time = fixed + a * tokens + b * squares, where
// squares is the sum of L * L over the samples. It fits the last steps by iteratively reweighted least
// squares with Huber's weights, so that a step with a disturbance (a checkpoint, many page faults) hardly
// counts.
//
//   CostFit fit;
//   fit.add(tokens, squares, seconds);      // of a step of this rank, without its wait for other ranks
//   if (const auto fitted = fit.fit()) ...  // between two blocks: planner.change(fitted->cost, speeds)
//
// Threads: a CostFit belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

struct MeasuredStep {
  double tokens = 0;
  double squares = 0;
  double seconds = 0;
};

class CostFit {
 public:
  /// Keeps the last `capacity` steps.
  explicit CostFit(std::size_t capacity = 512);

  /// Adds a step of one rank. Ignores it if a value is not finite or not positive.
  void add(double tokens, double squares, double seconds);

  /// The last steps, in any order.
  const std::vector<MeasuredStep>& steps() const { return steps_; }

  /// Returns nullopt if the steps are too few, or too similar to separate a from b. A term that would be
  /// negative is set to 0 and the other one fitted alone.
  std::optional<FittedCost> fit() const;

 private:
  std::size_t capacity_;
  std::size_t next_ = 0;  // the oldest step, once there are `capacity_`
  std::vector<MeasuredStep> steps_;
};

}  // namespace lockstep::data
