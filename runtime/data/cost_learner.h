// Learns the cost of samples and the speeds of the ranks from measured steps. Each rank measures its own
// steps; rank 0 fits the cost (cost_fit.h), decides and broadcasts its decision, so that all ranks use the
// same values.
//
// Threads: the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/data/cost_fit.h"
#include "runtime/data/loader_options.h"

namespace lockstep {
namespace comm {
class Communicator;
}
namespace profile {
class StepTimer;
}
}  // namespace lockstep

namespace lockstep::data {

class CostLearner {
 public:
  /// `communicator` may be null if there is one rank. `communicator` and `timer` must outlive the learner.
  /// `step_seconds` is that of LoaderOptions.
  CostLearner(CostModel what, const Cost& cost, std::vector<double> speeds, comm::Communicator* communicator,
              const profile::StepTimer* timer, std::function<double()> step_seconds);

  /// Call when the loop requests its next batch. Measures the step that has ended since the last request,
  /// if any.
  void on_request();
  /// Adds the work of a batch to the current step: the sums of its samples' lengths and of their squares.
  void add_work(double tokens, double squares);

  /// Decides from the steps measured so far. Collective: all ranks call it after the same batch.
  const CostCoefficients& decide();

  const CostCoefficients& cost_coefficients() const { return learnt_; }

  /// Begins with the values that an earlier job had learnt.
  void begin_with(const Cost& cost, const std::vector<double>& speeds);

 private:
  double work_seconds() const;
  void fit_on_rank_0();
  double slowness() const;
  void compare_ranks();

  CostModel what_;
  comm::Communicator* communicator_;
  const profile::StepTimer* timer_;
  std::function<double()> step_seconds_;
  std::uint64_t steps_seen_ = 0;
  double tokens_ = 0;   // of the current step
  double squares_ = 0;  // of the current step
  CostFit fit_;
  double fixed_ = 0;         // seconds of a step, for any samples
  bool in_seconds_ = false;  // learnt_.cost is fitted, so its unit is seconds and fixed_ belongs to it
  CostCoefficients learnt_;
};

}  // namespace lockstep::data
