#include "runtime/data/plan/tool/plan_stats.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace lockstep::data {
namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : sum_of(values) / static_cast<double>(values.size());
}

struct StepLoads {
  std::vector<double> rank_tokens;
  std::vector<double> rank_costs;
  std::vector<double> sample_costs;
  double tokens = 0;
  double squares = 0;  // sum over the samples of tokens squared
  double padded = 0;   // tokens and padding
  double micro_batches = 0;
};

StepLoads loads_of(const Plan& plan, std::span<const std::uint32_t> lengths, std::size_t step) {
  const PlanOptions& options = plan.options();
  StepLoads loads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    double tokens = 0;
    double cost = 0;
    const std::size_t micro_batches = plan.micro_batches(step, rank);
    loads.micro_batches += static_cast<double>(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      std::uint32_t longest = 0;
      const auto samples = plan.micro_batch(step, rank, m);
      for (const SampleId id : samples) {
        const std::uint32_t length = planned_length(id, lengths[sample_of(id)], options);
        tokens += length;
        loads.squares += static_cast<double>(length) * static_cast<double>(length);
        longest = std::max(longest, length);
        loads.sample_costs.push_back(options.cost.of(length));
        if (!options.padded) cost += options.cost.of(length);
      }
      if (!options.padded) continue;
      const auto rows = static_cast<double>(samples.size());
      const std::uint64_t row = padded_length(longest, options.pad_multiple, options.cap);
      cost += rows * options.cost.of(row);
      loads.padded += rows * static_cast<double>(row);
    }
    loads.tokens += tokens;
    loads.rank_tokens.push_back(tokens);
    loads.rank_costs.push_back(cost);
  }
  if (!options.padded) loads.padded = loads.tokens;
  return loads;
}

double max_by_mean(const std::vector<double>& values) {
  const double mean = mean_of(values);
  return mean > 0 ? *std::max_element(values.begin(), values.end()) / mean : 1;
}

// The longest time of a rank, divided by the time of each if the cost were distributed in proportion to the
// speeds.
double longest_by_ideal(const std::vector<double>& costs, const std::vector<double>& speeds) {
  if (speeds.empty()) return max_by_mean(costs);
  const double all = sum_of(costs);
  double longest = 0;
  for (std::size_t rank = 0; rank < costs.size(); ++rank)
    longest = std::max(longest, costs[rank] / speeds[rank]);
  return all > 0 ? longest * sum_of(speeds) / all : 1;
}

// A lower bound of the imbalance. Of the p * ranks + 1 costliest samples some rank has p + 1, which cost at
// least as much as the cheapest p + 1 of them; and no rank is faster than the fastest.
double bound_by_mean(std::vector<double> costs, std::size_t ranks, double fastest) {
  const double mean = sum_of(costs) / static_cast<double>(ranks);
  if (mean <= 0) return 1;
  std::sort(costs.begin(), costs.end(), std::greater<>());
  std::vector<double> sums(costs.size() + 1, 0);  // of the costliest 0, 1, 2, ... samples
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  double bound = mean;
  for (std::size_t p = 0; p * ranks < costs.size(); ++p) {
    bound = std::max(bound, (sums[p * ranks + 1] - sums[p * ranks - p]) / fastest);
  }
  return bound / mean;
}

// The samples that steps are drawn from: all of an epoch, or those that a mixture uses.
struct Population {
  double count = 0;
  double tokens = 0;
  double squares = 0;
  std::size_t skipped = 0;  // samples that are over the cap, without `count`

  double mean() const { return count > 0 ? tokens / count : 0; }
  double variance() const { return count > 0 ? std::max(0.0, squares / count - mean() * mean()) : 0; }
};

Population population_of(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  Population all;
  for (const std::uint32_t whole : lengths) {
    if (whole == 0) continue;  // in no plan
    if (whole > options.cap && options.too_long == TooLong::skip) {
      ++all.skipped;
      continue;
    }
    std::uint64_t piece = 0;
    do {
      const auto length = static_cast<double>(planned_length(piece << kPieceShift, whole, options));
      all.tokens += length;
      all.squares += length * length;
      all.count += 1;
    } while (options.too_long == TooLong::split && ++piece * options.cap < whole);
  }
  return all;
}

// Compares the mean lengths of steps with those of random draws.
class StepMeans {
 public:
  void add(double tokens, double samples) {
    means_.push_back(tokens / samples);
    samples_.push_back(samples);
  }

  // Standard deviation / that of independent random draws from the population; 0 if all lengths are equal.
  double ratio(const Population& population) const {
    double expected_squares = 0;
    for (const double samples : samples_) expected_squares += population.variance() / samples;
    const auto steps = static_cast<double>(means_.size());
    const double expected = means_.empty() ? 0 : std::sqrt(expected_squares / steps);
    if (expected <= 1e-9 * population.mean()) return 0;
    const std::vector<double> deviations = deviations_of_steps();
    return std::sqrt(squares_of(deviations) / steps) / expected;
  }

  double lag1() const {
    const std::vector<double> deviations = deviations_of_steps();
    if (deviations.size() < 3) return 0;
    double products = 0;
    for (std::size_t i = 1; i < deviations.size(); ++i) products += deviations[i] * deviations[i - 1];
    const double squares = squares_of(deviations);
    return squares > 0 ? products / squares : 0;
  }

 private:
  std::vector<double> deviations_of_steps() const {
    std::vector<double> deviations = means_;
    const double mean = mean_of(means_);
    for (double& deviation : deviations) deviation -= mean;
    return deviations;
  }
  static double squares_of(const std::vector<double>& values) {
    return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  }

  std::vector<double> means_;    // the mean length in each step
  std::vector<double> samples_;  // the samples of each step
};

}  // namespace

PlanStats stats_of(const Plan& plan, std::span<const std::uint32_t> lengths) {
  PlanStats stats;
  const PlanOptions& options = plan.options();
  const Mixture* const mixture = plan.mixture() != nullptr ? &plan.mixture()->mixture : nullptr;
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const auto budget = static_cast<double>(step_budget(options));
  stats.steps = plan.steps();
  Population population;
  if (mixture != nullptr) {
    stats.minimum_steps = mixture->steps;
  } else {
    population = population_of(lengths, options);
    std::vector<SampleId> used(plan.sample_ids().begin(), plan.sample_ids().end());
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    stats.duplicated = plan.sample_ids().size() - used.size();
    stats.dropped = static_cast<std::size_t>(population.count) + population.skipped - used.size();
    const double full_step = options.step_tokens > 0
                                 ? budget
                                 : static_cast<double>(options.cap) * options.ranks * options.accumulate;
    stats.minimum_steps = static_cast<std::size_t>(std::ceil(population.tokens / full_step));
  }
  if (stats.steps == 0) return stats;

  const double fastest = options.speeds.empty() ? 1 : max_by_mean(options.speeds);  // relative to the mean
  // All steps of a mixture are full.
  const std::size_t counted = mixture != nullptr ? stats.steps : std::max<std::size_t>(1, stats.steps - 1);
  double tokens = 0;
  double padded = 0;
  double micro_batches = 0;
  std::vector<double> imbalances_tokens;
  std::vector<double> imbalances_cost;
  std::vector<double> bounds;
  StepMeans means;
  for (std::size_t step = 0; step < counted; ++step) {
    const StepLoads loads = loads_of(plan, lengths, step);
    tokens += loads.tokens;
    padded += loads.padded;
    micro_batches += loads.micro_batches;
    stats.step_tokens_max = std::max(stats.step_tokens_max, loads.tokens / budget);
    imbalances_tokens.push_back(max_by_mean(loads.rank_tokens));
    imbalances_cost.push_back(longest_by_ideal(loads.rank_costs, options.speeds));
    bounds.push_back(options.padded ? 1 : bound_by_mean(loads.sample_costs, ranks, fastest));
    const auto samples = static_cast<double>(loads.sample_costs.size());
    if (samples > 0) means.add(loads.tokens, samples);
    if (mixture != nullptr) {
      population.count += samples;
      population.tokens += loads.tokens;
      population.squares += loads.squares;
    }
  }
  stats.fill = micro_batches > 0 ? tokens / (micro_batches * static_cast<double>(options.cap)) : 0;
  stats.step_tokens_mean = tokens / (budget * static_cast<double>(counted));
  stats.micro_batches = micro_batches / static_cast<double>(ranks * counted);
  stats.padding = padded > 0 ? (padded - tokens) / padded : 0;
  stats.imbalance_tokens = mean_of(imbalances_tokens);
  stats.imbalance_cost = mean_of(imbalances_cost);
  stats.lower_bound_cost = mean_of(bounds);
  stats.step_mean_ratio = means.ratio(population);
  stats.lag1 = means.lag1();
  return stats;
}

}  // namespace lockstep::data
