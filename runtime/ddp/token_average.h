// Computes the divisor of averaging by tokens. The number of tokens of an optimizer step on all ranks is
// known only in its last micro-batch. So losses are first multiplied by 1 / expected, where `expected` is a
// power of two (exact in floating point) near the previous step's number. The reduced sum is then multiplied
// by expected / actual. Without the first factor, half types would overflow.
//
// Threads: the training thread; the communicator's thread computes the gradient factor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

class TokenAverage {
 public:
  explicit TokenAverage(comm::Communicator& communicator) : communicator_(communicator) {}

  /// Counts a micro-batch. The number of the very first one is also summed over the ranks, as the expected
  /// number.
  void add(std::int64_t tokens);

  /// Forgets the micro-batches since the last close_step().
  void discard() { pending_ = 0; }

  /// The factor by which the loss is multiplied: a power of two, the same on all ranks.
  double loss_factor() const { return 1.0 / expected_; }

  /// This rank's count of the step, and a function to call with the sum over the ranks, from any thread: it sets
  /// *gradient_factor(). The next add() belongs to the next step.
  struct Count {
    std::int64_t mine = 0;
    std::function<void(std::int64_t)> set_sum;
  };
  Count close_step();

  /// The factor by which reduced gradients are multiplied. Read it in operations that run after set_sum(), and let them
  /// keep the pointer. It is 0 for a step without tokens, whose gradients are
  /// 0.
  std::shared_ptr<const double> gradient_factor() const { return {reduced_, &reduced_->gradient_factor}; }

  /// The tokens of all ranks in the last step that was reduced.
  std::int64_t tokens_of_last_step() const { return reduced_->total; }

 private:
  // Written by set_sum(), which may outlive this object.
  struct Reduced {
    std::int64_t total = 0;
    double gradient_factor = 1;
  };

  comm::Communicator& communicator_;
  std::int64_t pending_ = 0;  // this rank's tokens since the last reduction
  std::shared_ptr<Reduced> reduced_ = std::make_shared<Reduced>();
  bool step_is_over_ = false;  // reduced_ is of the previous step
  double expected_ = 0;        // 0: not known yet
};

}  // namespace lockstep::ddp
