// The divisor of averaging by tokens. How many tokens an optimizer step has on all ranks is known only in its
// last micro-batch, so losses are first multiplied by 1 / expected, where `expected` is a power of two (exact
// in floating point) near the number that the step before had, and the reduced sum is then multiplied by
// expected / actual. Without the first factor half types would overflow.
//
// Threads: the training thread; the gradient's factor is computed on the communicator's.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

class TokenAverage {
 public:
  explicit TokenAverage(comm::Communicator& communicator) : communicator_(communicator) {}

  /// Counts a micro-batch. The first one ever is also summed over the ranks, to have something to expect.
  void add(std::int64_t tokens);

  /// Forgets the micro-batches since the last reduce_counts().
  void discard() { pending_ = 0; }

  /// What the loss is multiplied by; the same on all ranks, a power of two.
  double loss_factor() const { return 1.0 / expected_; }

  /// Asks for the sum of the step's counts. When that is done, what *gradient_factor() points to is set, and
  /// the next step begins.
  comm::WorkHandle reduce_counts();

  /// What reduced gradients are multiplied by; read it in operations after reduce_counts(), which keep it. 0
  /// for a step without tokens, whose gradients are 0.
  std::shared_ptr<const double> gradient_factor() const { return {reduced_, &reduced_->gradient_factor}; }

  /// Tokens of all ranks in the last reduced step.
  std::int64_t tokens_of_last_step() const { return reduced_->total; }

 private:
  // What the operation writes: it may end after this object.
  struct Reduced {
    std::int64_t total = 0;
    double gradient_factor = 1;
  };

  comm::Communicator& communicator_;
  std::int64_t pending_ = 0;  // this rank's tokens since the last reduction
  std::shared_ptr<Reduced> reduced_ = std::make_shared<Reduced>();
  bool step_is_over_ = false;  // reduced_ is of the step before
  double expected_ = 0;        // 0: nothing is known yet
};

}  // namespace lockstep::ddp
