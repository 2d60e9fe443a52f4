// The gradient noise scale: the number of tokens (or samples) in a step at which gradients are half signal and half
// noise. Steps that are much smaller waste time on noise, and steps that are much larger waste tokens (McCandlish et al.
// 2018, "An Empirical Model of Large-Batch Training", appendix A). Use it to choose the tokens of a step.
//
//   auto noise = std::make_shared<lockstep::GradientNoiseScale>(world);
//   ddp.register_comm_hook(noise);
//   …
//     ddp.backward(loss_sum, tokens);                       // the last micro-batch of the step
//     noise->end_step(tokens_of_this_rank_in_the_step);
//     if (const auto scale = noise->value()) print(*scale);
//
// It compares the gradient of each rank, before they are summed, with the sum; so it needs at least two ranks, and
// counts all micro-batches that a rank accumulated. It takes the place of the model's communication hook: not with
// compression, not with DistributedOptimizer and not within join(). It costs two passes over the gradients.
//
// Threads: start() as CommHook; the rest: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/ddp/comm_hook.h"

namespace lockstep {

class GradientNoiseScale : public CommHook {
 public:
  /// `decay`: of the running means over steps; a single step says little. Throws UsageError for a decay outside of
  /// [0, 1), and in a job of one rank.
  explicit GradientNoiseScale(World& world, double decay = 0.99);

  CommFuture start(GradBucket& bucket, comm::Communicator& communicator) override;
  void averages_by_count() override { by_count_ = true; }
  void gradients_scaled(double factor) override;
  std::string refuses_join() const override;
  /// The running means.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Call it after each synchronised backward, on all ranks. `tokens`: of this rank in this step, all micro-batches
  /// together; 0 on a rank without data. If gradients are averaged over ranks, the number of samples.
  void end_step(std::int64_t tokens);

  /// The noise scale in the unit of end_step(), the same on all ranks. Steps with infinite or NaN gradients
  /// do not count. nullopt until two ranks had data in the same step, and while the noise hides the gradient:
  /// the scale is then much larger than the step.
  std::optional<double> value() const;

 private:
  double take(std::vector<torch::Tensor>& squares) const;

  World& world_;
  bool by_count_ = false;
  double decay_;
  std::vector<torch::Tensor> local_;   // squared norms of this step's buckets, before the sum over ranks
  std::vector<torch::Tensor> global_;  // and after it
  double scale_ = 1;                   // of the gradients: all factors that gradients_scaled() has got
  double noise_ = 0;                   // running means: trace of the covariance of one token's gradient,
  double signal_ = 0;                  // and the squared norm of the true gradient
  bool known_ = false;
};

}  // namespace lockstep
