// Learns from measured steps what a sample costs and how fast the ranks are, and lets all ranks know the
// same. Each rank measures its own steps; rank 0 fits the cost (cost_fit.h) and decides, the others are told.
//
// Threads: the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
  /// `communicator` may be null where there is one rank; both must outlive the learner. `step_seconds` as in
  /// LoaderOptions.
  CostLearner(Learn what, const Cost& cost, std::vector<double> speeds, comm::Communicator* communicator,
              const profile::StepTimer* timer, std::function<double()> step_seconds);

  /// The loop asks for its next batch: a step that has ended since is measured. Then so much more work is
  /// handed out (sums of the samples' lengths and of their squares).
  void asked();
  void handed_out(double tokens, double squares);

  /// Decides with the steps so far; all ranks call it, with the same number of batches behind them.
  const Learnt& decide();

  const Learnt& learnt() const { return learnt_; }

  /// Begins with what an earlier job had learnt.
  void begin_with(const Cost& cost, const std::vector<double>& speeds);

 private:
  struct Measured {
    double tokens;
    double squares;
    double seconds;
  };
  double work_seconds() const;
  void fit_on_rank_0();
  double slowness() const;
  void compare_ranks();

  Learn what_;
  comm::Communicator* communicator_;
  const profile::StepTimer* timer_;
  std::function<double()> step_seconds_;
  std::uint64_t steps_seen_ = 0;
  double tokens_ = 0;   // of the step that is under way
  double squares_ = 0;  // likewise
  CostFit fit_;
  std::vector<Measured> recent_;  // the last steps, a ring
  std::size_t next_ = 0;
  double fixed_ = 0;         // seconds of a step that do not depend on its samples
  bool in_seconds_ = false;  // learnt_.cost is fitted, so fixed_ goes with it
  Learnt learnt_;
};

}  // namespace lockstep::data
