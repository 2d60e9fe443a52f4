// Learning-rate schedules: the optimizer's learning rate as a function of the optimizer step.
//
//   namespace schedule = lockstep::schedule;
//   lockstep::LearningRate learning_rate(
//       optimizer, schedule::sequence({{schedule::linear(0.01, 1, 500), 500}, {schedule::cosine(9500), 9500}}));
//   …
//     optimizer.step();
//     learning_rate.step();
//
// A schedule returns a factor. The learning rate of each parameter group is the one that the group had when
// LearningRate was made, times that factor. Schedules are pure functions of the step number, so all ranks that
// count the same steps have the same learning rate, and resuming needs the step number only.
//
// The formulas are those of torch.optim.lr_scheduler (PyTorch); inverse_sqrt is that of "Attention Is All You
// Need" (Vaswani et al. 2017).
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace lockstep {

class DistributedOptimizerBase;

namespace schedule {

/// The factor for an optimizer step, counted from 0.
using Schedule = std::function<double(std::int64_t step)>;

/// All of these throw UsageError for arguments that make no sense (zero steps, negative factors).

Schedule constant(double factor = 1);

/// From `begin` at step 0 to `end` at step `steps`, and `end` from then on. linear(0.01, 1, 500) is a warm-up.
Schedule linear(double begin, double end, std::int64_t steps);

/// From 1 at step 0 down to `end` at step `steps` along half a cosine, and `end` from then on.
Schedule cosine(std::int64_t steps, double end = 0);

/// Multiplied by `gamma` at each of the milestones, which increase.
Schedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);

/// Grows linearly to 1 in the first `warmup` steps; step `warmup` - 1, the last one of them, has the factor 1. Then
/// falls as sqrt(warmup / (step + 1)).
Schedule inverse_sqrt(std::int64_t warmup);

struct OneCycleOptions {
  double warmup = 0.3;  ///< share of the steps in which the learning rate rises, above 0 and below 1
  /// As in PyTorch's OneCycleLR, the end divides the beginning.
  double div_factor = 25;         ///< begins at 1 / div_factor
  double final_div_factor = 1e4;  ///< ends at 1 / (div_factor * final_div_factor)
};

/// Up from 1 / div_factor to 1, then down to 1 / (div_factor * final_div_factor), both along half a cosine (Smith and
/// Topin 2018). The optimizer's own learning rate is the peak.
Schedule one_cycle(std::int64_t steps, const OneCycleOptions& options = {});

struct Part {
  Schedule schedule;
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
};

/// Runs the parts one after the other. Each part counts from 0; the last one continues after its steps.
Schedule sequence(std::vector<Part> parts);

}  // namespace schedule

/// The factor of the learning rate for a batch `batches` times as large: `linear` is right for SGD (Goyal et
/// al. 2017), `square_root` for Adam and its relatives (Malladi et al. 2022).
enum class BatchScaling { linear, square_root };
double batch_scale(double batches, BatchScaling scaling);

/// A torch::optim::LRScheduler, so that it can be passed to code that takes one. LRScheduler::step() sets the learning
/// rate of the next step: call it after optimizer.step().
class LearningRate : public torch::optim::LRScheduler {
 public:
  /// Sets the learning rate of step 0. The optimizer must outlive this object.
  LearningRate(torch::optim::Optimizer& optimizer, schedule::Schedule schedule);
  LearningRate(DistributedOptimizerBase& optimizer, schedule::Schedule schedule);

  /// Continues at a step, for instance the one stored in a checkpoint. Throws UsageError for a negative one.
  void set_step(std::int64_t step);
  std::int64_t current_step() const { return step_count_; }

  /// For checkpoints: the step. Load it after the optimizer, whose state also has learning rates.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  /// The learning rate of each parameter group now.
  std::vector<double> values() const;

 private:
  // LRScheduler::step() asks for those of the step after step_count_.
  std::vector<double> get_lrs() override { return values_of(static_cast<std::int64_t>(step_count_) + 1); }
  std::vector<double> values_of(std::int64_t step) const;

  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  schedule::Schedule schedule_;
  std::vector<double> base_;  // by parameter group
};

struct PlateauOptions {
  double factor = 0.1;      ///< the learning rate is multiplied by this, above 0 and below 1
  int patience = 10;        ///< how many observations without improvement are tolerated
  double threshold = 1e-4;  ///< an improvement is at least this part of the best value
  bool maximize = false;    ///< the metric should grow, as an accuracy does
  double minimum = 0;       ///< no group's learning rate falls below this
};

/// Lowers the learning rate when a metric stops improving (PyTorch's ReduceLROnPlateau, relative threshold).
/// All ranks must observe the same values: sum the metric over the ranks first.
class ReduceOnPlateau {
 public:
  /// The optimizer must outlive this object. Throws UsageError for options that make no sense.
  ReduceOnPlateau(torch::optim::Optimizer& optimizer, const PlateauOptions& options = {});
  ReduceOnPlateau(DistributedOptimizerBase& optimizer, const PlateauOptions& options = {});

  /// Returns whether the learning rate was lowered. Throws UsageError if the metric is not a number.
  bool observe(double metric);

  /// For checkpoints; the learning rates themselves are in the optimizer's state.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct State {
    double best = 0;
    std::int64_t observations = 0;  // since the last improvement
    bool begun = false;
  };
  ReduceOnPlateau(std::vector<torch::optim::OptimizerParamGroup>& groups, const PlateauOptions& options);

  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  PlateauOptions options_;
  State state_;
};

}  // namespace lockstep
