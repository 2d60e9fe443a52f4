// Ends training when a validation metric has stopped improving.
//
//   lockstep::EarlyStopping stopping({.patience = 3});
//   if (stopping.observe(validation_loss)) break;
//
// All ranks must observe the same values (sum the metric over the ranks first), so that all stop together.
//
// Threads: one at a time.
#pragma once

#include <cmath>

#include "common/error.h"

namespace lockstep {

struct EarlyStoppingOptions {
  int patience = 5;       ///< how many observations without improvement are tolerated
  double threshold = 0;   ///< an improvement is larger than this
  bool maximize = false;  ///< the metric should grow, as an accuracy does
};

class EarlyStopping {
 public:
  /// Throws UsageError for a negative patience or threshold.
  explicit EarlyStopping(const EarlyStoppingOptions& options = {}) : options_(options) {
    if (options.patience < 0 || !(options.threshold >= 0))
      fail_usage("EarlyStopping: patience ({}) and threshold ({}) must not be negative", options.patience,
                 options.threshold);
  }

  /// Whether training should stop. A metric that is NaN does not count as an improvement.
  bool observe(double metric) {
    const double gain = options_.maximize ? metric - state_.best : state_.best - metric;
    const bool improved = !std::isnan(metric) && (!state_.begun || gain > options_.threshold);
    if (improved) {
      state_ = {.best = metric, .without_improvement = 0, .begun = true};
    } else {
      ++state_.without_improvement;
    }
    return state_.without_improvement > options_.patience;
  }

  /// Whether the last observation was the best so far: the moment to keep a checkpoint.
  bool improved() const { return state_.begun && state_.without_improvement == 0; }

  /// For checkpoints.
  struct State {
    double best = 0;
    int without_improvement = 0;
    bool begun = false;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  EarlyStoppingOptions options_;
  State state_;
};

}  // namespace lockstep
