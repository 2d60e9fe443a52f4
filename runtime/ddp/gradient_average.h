// How a model's gradients are averaged: over ranks, as PyTorch does, or by count. The call of the first backward
// settles it, and all ranks must call alike; the message of each step compares them.
//
// By count, the sum of gradients is divided by the sum of all counts of an optimizer step, which is known only in its
// last micro-batch. So losses are first multiplied by 1 / expected, where `expected` is a power of two (exact in
// floating point) near the previous step's sum. The reduced gradients are then multiplied by expected / actual. Without
// the first factor, half types would overflow. In the first step no sum is known, and `expected` is a constant. It is the
// same on all ranks in every step, because backward may itself add up gradients of all ranks, as that of SyncBatchNorm
// does.
//
// Threads: the training thread; on the CPU the factor is computed by the thread that completes the step's message.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace lockstep::ddp {

enum class Averaging : std::uint8_t {
  undecided,   ///< no backward yet, for example because this rank had no data
  over_ranks,  ///< loss.backward()
  by_count,    ///< ddp.backward(loss_sum, count)
};

/// A rank's part of the message of a step.
struct RankAverage {
  Averaging mode = Averaging::undecided;
  std::int64_t count = 0;
};

/// The parts of all ranks together.
struct JobAverage {
  std::int64_t count = 0;  ///< the sum
  int over_ranks = -1;     ///< the first rank that averages over ranks; -1: none
  int by_count = -1;       ///< the first rank that averages by count; -1: none
};

class GradientAverage {
 public:
  explicit GradientAverage(int ranks);

  /// Call it before each backward, and with `undecided` for a micro-batch without one. Throws UsageError if an earlier
  /// backward averaged in another way, and for a negative count.
  void begin(Averaging mode, std::int64_t count);

  /// Forgets the micro-batches since the last close_step().
  void discard() { pending_ = 0; }

  Averaging mode() const { return mode_; }

  /// The factor by which the loss is multiplied: a power of two, the same on all ranks; 1 over ranks.
  double loss_factor() const { return 1.0 / expected_; }

  /// This rank's part of the step's message, and a function to call with that of all ranks, from any thread: it sets
  /// *factor() and count_of_last_step(). The next begin() belongs to the next step. On a device the function is called a
  /// step later, so that begin() uses the sum of exactly two steps ago on all ranks.
  struct Step {
    RankAverage mine;
    std::function<void(const JobAverage&)> decide;
  };
  Step close_step();

  /// Whether all ranks are known to average alike. If not, call adopt() before gradients are reduced.
  bool agreed() const { return agreed_; }

  /// Adopts the message of all ranks. Throws UsageError naming two ranks that average differently.
  void adopt(const JobAverage& all);

  /// The factor by which reduced gradients are multiplied. Read it in operations that run after `decide`, and let them
  /// keep the pointer. It is 0 for a step without counts, whose gradients are 0. Over ranks it is rank_factor().
  std::shared_ptr<const double> factor() const {
    if (mode_ == Averaging::over_ranks) return rank_factor_;
    return {reduced_, &reduced_->factor};
  }

  /// The factor over ranks, 1 / ranks; inside join another one.
  const std::shared_ptr<double>& rank_factor() const { return rank_factor_; }

  /// The sum of all ranks in the last step that was reduced; 0 over ranks.
  std::int64_t count_of_last_step() const { return reduced_->count; }

 private:
  // Written by `decide`, which may outlive this object.
  struct Reduced {
    std::int64_t count = 0;
    double factor = 1;
  };

  std::shared_ptr<double> rank_factor_;
  Averaging mode_ = Averaging::undecided;
  bool agreed_ = false;
  bool step_begins_ = true;
  double expected_ = 1;
  std::int64_t pending_ = 0;  // this rank's counts since the last reduction
  std::shared_ptr<Reduced> reduced_ = std::make_shared<Reduced>();
};

}  // namespace lockstep::ddp
