#include "runtime/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/error.h"
#include "runtime/torch_archive.h"
#include "runtime/train/distributed_optimizer.h"

namespace lockstep {
namespace {

void require_steps(const char* name, std::int64_t steps) {
  if (steps < 1) fail_usage("{}: steps is {}; it must be at least 1", name, steps);
}

void require_factor(const char* name, const char* argument, double factor) {
  if (!(factor >= 0) || !std::isfinite(factor))
    fail_usage("{}: {} is {}; it must be a number that is not negative", name, argument, factor);
}

/// From `begin` to `end` along half a cosine; `part` is from 0 to 1.
double half_cosine(double begin, double end, double part) {
  return end + (begin - end) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

namespace schedule {

Schedule constant(double factor) {
  require_factor("constant", "factor", factor);
  return [factor](std::int64_t) { return factor; };
}

Schedule linear(double begin, double end, std::int64_t steps) {
  require_steps("linear", steps);
  require_factor("linear", "begin", begin);
  require_factor("linear", "end", end);
  return [=](std::int64_t step) {
    const double part = static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
    return begin + (end - begin) * part;
  };
}

Schedule cosine(std::int64_t steps, double end) {
  require_steps("cosine", steps);
  require_factor("cosine", "end", end);
  return [=](std::int64_t step) {
    return half_cosine(1, end, static_cast<double>(std::min(step, steps)) / static_cast<double>(steps));
  };
}

Schedule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  require_factor("multi_step", "gamma", gamma);
  if (!std::is_sorted(milestones.begin(), milestones.end()))
    fail_usage("multi_step: the milestones must increase");
  return [milestones = std::move(milestones), gamma](std::int64_t step) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  };
}

Schedule inverse_sqrt(std::int64_t warmup) {
  require_steps("inverse_sqrt", warmup);
  return [warmup](std::int64_t step) {
    const double at = static_cast<double>(step + 1);
    const double top = static_cast<double>(warmup);
    return std::min(at / top, std::sqrt(top / at));
  };
}

Schedule one_cycle(std::int64_t steps, const OneCycleOptions& options) {
  require_steps("one_cycle", steps);
  if (!(options.warmup > 0 && options.warmup < 1))
    fail_usage("one_cycle: warmup is {}; it must be between 0 and 1", options.warmup);
  if (!(options.div_factor >= 1) || !(options.final_div_factor >= 1))
    fail_usage("one_cycle: the divisors are {} and {}; they must be at least 1", options.div_factor,
               options.final_div_factor);
  const double first = 1 / options.div_factor;
  const double final = first / options.final_div_factor;
  return [=](std::int64_t step) {
    const double last = static_cast<double>(steps - 1);
    const double top = std::max(options.warmup * static_cast<double>(steps) - 1, 0.0);
    const double at = std::min(static_cast<double>(step), last);
    if (at < top) return half_cosine(first, 1, at / top);
    return half_cosine(1, final, last > top ? (at - top) / (last - top) : 1);
  };
}

Schedule sequence(std::vector<Part> parts) {
  if (parts.empty()) fail_usage("sequence: there are no parts");
  for (const Part& part : parts) require_steps("sequence", part.steps);
  return [parts = std::move(parts)](std::int64_t step) {
    std::size_t part = 0;
    while (part + 1 < parts.size() && step >= parts[part].steps) step -= parts[part++].steps;
    return parts[part].schedule(step);
  };
}

}  // namespace schedule

double batch_scale(double batches, BatchScaling scaling) {
  if (!(batches > 0) || !std::isfinite(batches))
    fail_usage("batch_scale: batches is {}; it must be above 0", batches);
  return scaling == BatchScaling::linear ? batches : std::sqrt(batches);
}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, schedule::Schedule schedule)
    : LRScheduler(optimizer),
      groups_(optimizer.param_groups()),
      schedule_(std::move(schedule)),
      base_(values()) {
  set_step(0);
}

LearningRate::LearningRate(DistributedOptimizerBase& optimizer, schedule::Schedule schedule)
    : LearningRate(optimizer.local_optimizer(), std::move(schedule)) {
}

std::vector<double> LearningRate::values_of(std::int64_t step) const {
  if (groups_.size() != base_.size())
    fail_usage(
        "LearningRate: the optimizer has {} parameter groups, and had {} when LearningRate was made; make it after the last group was added",
        groups_.size(), base_.size());
  const double factor = schedule_(step);
  std::vector<double> values;
  for (const double base : base_) values.push_back(base * factor);
  return values;
}

void LearningRate::set_step(std::int64_t step) {
  if (step < 0 || step > std::numeric_limits<unsigned>::max())
    fail_usage("LearningRate: step is {}; it must not be negative, and below 2^32", step);
  const auto values = values_of(step);
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].options().set_lr(values[i]);
  step_count_ = static_cast<unsigned>(step);
}

std::vector<double> LearningRate::values() const {
  std::vector<double> result;
  for (auto& group : groups_) result.push_back(group.options().get_lr());
  return result;
}

void LearningRate::save(torch::serialize::OutputArchive& archive) const {
  archive.write("step", current_step());
}

void LearningRate::load(torch::serialize::InputArchive& archive) {
  set_step(value_in(archive, "step").toInt());
}

ReduceOnPlateau::ReduceOnPlateau(torch::optim::Optimizer& optimizer, const PlateauOptions& options)
    : ReduceOnPlateau(optimizer.param_groups(), options) {
}

ReduceOnPlateau::ReduceOnPlateau(DistributedOptimizerBase& optimizer, const PlateauOptions& options)
    : ReduceOnPlateau(optimizer.param_groups(), options) {
}

ReduceOnPlateau::ReduceOnPlateau(std::vector<torch::optim::OptimizerParamGroup>& groups,
                                 const PlateauOptions& options)
    : groups_(groups), options_(options) {
  if (!(options.factor > 0 && options.factor < 1))
    fail_usage("ReduceOnPlateau: factor is {}; it must be between 0 and 1", options.factor);
  if (options.patience < 0)
    fail_usage("ReduceOnPlateau: patience is {}; it must not be negative", options.patience);
  if (!(options.threshold >= 0) || !(options.minimum >= 0))
    fail_usage("ReduceOnPlateau: threshold ({}) and minimum ({}) must not be negative", options.threshold,
               options.minimum);
}

bool ReduceOnPlateau::observe(double metric) {
  if (std::isnan(metric)) fail_usage("ReduceOnPlateau: the metric is not a number");
  const double limit =
      options_.maximize ? state_.best * (1 + options_.threshold) : state_.best * (1 - options_.threshold);
  if (!state_.begun || (options_.maximize ? metric > limit : metric < limit)) {
    state_ = {.best = metric, .observations = 0, .begun = true};
    return false;
  }
  if (++state_.observations <= options_.patience) return false;
  state_.observations = 0;
  bool lowered = false;
  for (auto& group : groups_) {
    const double now = group.options().get_lr();
    const double next = std::max(now * options_.factor, options_.minimum);
    lowered = lowered || next < now;
    if (next < now) group.options().set_lr(next);
  }
  return lowered;
}

void ReduceOnPlateau::save(torch::serialize::OutputArchive& archive) const {
  archive.write("best", state_.best);
  archive.write("observations", state_.observations);
  archive.write("begun", state_.begun);
}

void ReduceOnPlateau::load(torch::serialize::InputArchive& archive) {
  state_ = {.best = value_in(archive, "best").toDouble(),
            .observations = value_in(archive, "observations").toInt(),
            .begun = value_in(archive, "begun").toBool()};
}

}  // namespace lockstep
