#include "runtime/data/plan/tool/plan_stats.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/mixture/mixture_coverage.h"

namespace lockstep::data {
namespace {

struct Step {
  std::vector<double> rank_tokens;
  std::vector<double> rank_costs;
  std::vector<double> sample_costs;
  double tokens = 0;
  double squares = 0;  // of samples' tokens
  double padded = 0;   // tokens and padding
  double micro_batches = 0;
};

Step step_of(const Plan& plan, std::span<const std::uint32_t> lengths, std::size_t index) {
  const PlanOptions options = options_of_step(plan, index);
  Step step;
  for (int rank = 0; rank < options.ranks; ++rank) {
    double tokens = 0;
    double cost = 0;
    const std::size_t micro_batches = plan.micro_batches(index, rank);
    step.micro_batches += static_cast<double>(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      std::uint32_t longest = 0;
      const auto samples = plan.micro_batch(index, rank, m);
      for (const SampleId id : samples) {
        const std::uint32_t length = planned_length(id, lengths[sample_of(id)], options);
        tokens += length;
        step.squares += static_cast<double>(length) * static_cast<double>(length);
        longest = std::max(longest, length);
        step.sample_costs.push_back(options.cost.of(length));
        if (!options.padded) cost += options.cost.of(length);
      }
      const auto rows = static_cast<double>(samples.size());
      if (options.padded) {
        const std::uint64_t row = padded_length(longest, options.pad_multiple, options.cap);
        cost += rows * options.cost.of(row);
        step.padded += rows * static_cast<double>(row);
      }
    }
    step.tokens += tokens;
    step.rank_tokens.push_back(tokens);
    step.rank_costs.push_back(cost);
  }
  if (!options.padded) step.padded = step.tokens;
  return step;
}

double mean_of(const std::vector<double>& values) {
  return values.empty()
             ? 0
             : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double greatest_by_mean(const std::vector<double>& values) {
  const double mean = mean_of(values);
  return mean > 0 ? *std::max_element(values.begin(), values.end()) / mean : 1;
}

// The longest time of a rank, over the one that all take when the work is dealt as their speeds are.
double longest_by_ideal(const std::vector<double>& costs, const std::vector<double>& speeds) {
  if (speeds.empty()) return greatest_by_mean(costs);
  const double work = std::accumulate(costs.begin(), costs.end(), 0.0);
  double longest = 0;
  for (std::size_t rank = 0; rank < costs.size(); ++rank)
    longest = std::max(longest, costs[rank] / speeds[rank]);
  return work > 0 ? longest * std::accumulate(speeds.begin(), speeds.end(), 0.0) / work : 1;
}

// Of the p * ranks + 1 costliest samples some rank holds p + 1, which cost at least what the cheapest p + 1
// of them do; no rank is faster than the fastest.
double bound_by_mean(std::vector<double> costs, std::size_t ranks, double fastest) {
  const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(ranks);
  if (mean <= 0) return 1;
  std::sort(costs.begin(), costs.end(), std::greater<>());
  std::vector<double> sums(costs.size() + 1, 0);  // of the costliest so many
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  double bound = mean;
  for (std::size_t p = 0; p * ranks < costs.size(); ++p) {
    bound = std::max(bound, (sums[p * ranks + 1] - sums[p * ranks - p]) / fastest);
  }
  return bound / mean;
}

// What the samples are like that some steps, one after the other, are drawn from: all of an epoch, or of a
// range of a mixture what it uses.
struct Population {
  double count = 0;
  double tokens = 0;
  double squares = 0;

  double mean() const { return count > 0 ? tokens / count : 0; }
  double variance() const { return count > 0 ? std::max(0.0, squares / count - mean() * mean()) : 0; }
};

// How the mean lengths of steps spread.
class Spread {
 public:
  // Of steps that draw from the same.
  void add(const std::vector<double>& means, const std::vector<double>& samples, const Population& from) {
    const double mean = mean_of(means);
    for (std::size_t i = 0; i < means.size(); ++i) {
      away_.push_back(means[i] - mean);
      expected_ += from.variance() / samples[i];
    }
    scale_ = std::max(scale_, from.mean());
  }

  // By what independent random draws would give; 0 where lengths do not differ.
  double ratio() const {
    const auto steps = static_cast<double>(away_.size());
    const double expected = away_.empty() ? 0 : std::sqrt(expected_ / steps);
    return expected > 1e-9 * scale_ ? std::sqrt(squares() / steps) / expected : 0;
  }

  double lag1() const {
    if (away_.size() < 3) return 0;
    double products = 0;
    for (std::size_t i = 1; i < away_.size(); ++i) products += away_[i] * away_[i - 1];
    return squares() > 0 ? products / squares() : 0;
  }

 private:
  double squares() const { return std::inner_product(away_.begin(), away_.end(), away_.begin(), 0.0); }

  std::vector<double> away_;  // of each step's mean, from that of all
  double expected_ = 0;       // of their squares' sum
  double scale_ = 0;
};

// How often a sample is to appear: once, or once for each piece.
std::uint64_t pieces_of(std::uint32_t length, const PlanOptions& options) {
  return options.too_long == TooLong::split ? (length + options.cap - 1) / options.cap : 1;
}

void count_coverage(const Plan& plan, std::span<const std::uint32_t> lengths, PlanStats& stats) {
  std::vector<std::uint32_t> seen(lengths.size());
  std::vector<SampleId> pieces;  // after a sample's first
  for (const SampleId id : plan.sample_ids()) {
    if (piece_of(id) == 0) {
      ++seen[sample_of(id)];
    } else {
      pieces.push_back(id);
    }
  }
  std::uint64_t wanted = 0;
  for (std::size_t id = 0; id < seen.size(); ++id) {
    wanted += pieces_of(lengths[id], plan.options()) - 1;
    if (seen[id] == 0) ++stats.dropped;
    if (seen[id] > 1) stats.duplicated += seen[id] - 1;
  }
  std::sort(pieces.begin(), pieces.end());
  const auto different = static_cast<std::size_t>(std::unique(pieces.begin(), pieces.end()) - pieces.begin());
  stats.duplicated += pieces.size() - different;
  stats.dropped += wanted - std::min<std::uint64_t>(wanted, different);
}

Population population_of(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  Population all;
  for (const std::uint32_t whole : lengths) {
    if (whole > options.cap && options.too_long == TooLong::skip) continue;
    const std::uint64_t pieces = pieces_of(whole, options);
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      const auto length = static_cast<double>(planned_length(piece << kPieceShift, whole, options));
      all.tokens += length;
      all.squares += length * length;
      all.count += 1;
    }
  }
  return all;
}

void count_mixture_coverage(const Plan& plan, std::span<const std::uint32_t> lengths, PlanStats& stats) {
  MixtureCoverage coverage(plan, lengths);
  for (const SampleId id : plan.sample_ids()) coverage.add(id);
  for (const SampleId id : plan.mixture()->left) coverage.add(id);
  const MixtureCoverage::Counts counts = coverage.count();
  stats.dropped = counts.missing;
  stats.duplicated = counts.twice;
}

}  // namespace

PlanStats stats_of(const Plan& plan, std::span<const std::uint32_t> lengths) {
  PlanStats stats;
  const PlanOptions& options = plan.options();
  const Mixture* const mixture = plan.mixture() != nullptr ? &plan.mixture()->mixture : nullptr;
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const auto budget = static_cast<double>(step_budget(options));
  const double full_step = options.step_tokens > 0
                               ? budget
                               : static_cast<double>(options.cap) * options.ranks * options.accumulate;
  stats.steps = plan.steps();
  Population population;
  if (mixture != nullptr) {
    stats.minimum_steps = mixture->steps;
    count_mixture_coverage(plan, lengths, stats);
  } else {
    population = population_of(lengths, options);
    stats.minimum_steps = static_cast<std::size_t>(std::ceil(population.tokens / full_step));
    count_coverage(plan, lengths, stats);
  }
  if (stats.steps == 0) return stats;

  // Beside the mean speed.
  double fastest = 1;
  if (!options.speeds.empty()) {
    const double mean = mean_of(options.speeds);
    fastest = *std::max_element(options.speeds.begin(), options.speeds.end()) / mean;
  }
  // All steps of a mixture are full.
  const std::size_t counted = mixture != nullptr ? stats.steps : std::max<std::size_t>(1, stats.steps - 1);
  double step_tokens = 0;
  double step_padded = 0;
  double micro_batches = 0;
  std::vector<double> imbalances_tokens;
  std::vector<double> imbalances_cost;
  std::vector<double> bounds;
  std::vector<double> means;
  std::vector<double> samples;
  Spread spread;
  for (std::size_t index = 0; index < counted; ++index) {
    const Step step = step_of(plan, lengths, index);
    step_tokens += step.tokens;
    step_padded += step.padded;
    micro_batches += step.micro_batches;
    stats.step_tokens_max = std::max(stats.step_tokens_max, step.tokens / budget);
    imbalances_tokens.push_back(greatest_by_mean(step.rank_tokens));
    imbalances_cost.push_back(longest_by_ideal(step.rank_costs, options.speeds));
    bounds.push_back(options.padded ? 1 : bound_by_mean(step.sample_costs, ranks, fastest));
    if (!step.sample_costs.empty()) {
      samples.push_back(static_cast<double>(step.sample_costs.size()));
      means.push_back(step.tokens / samples.back());
      if (mixture != nullptr) {
        population.count += samples.back();
        population.tokens += step.tokens;
        population.squares += step.squares;
      }
    }
    const bool last_of_range = mixture != nullptr && mixture->range_of(index) != mixture->range_of(index + 1);
    if (index + 1 < counted && !last_of_range) continue;
    spread.add(means, samples, population);
    means.clear();
    samples.clear();
    population = {};
  }
  stats.fill = micro_batches > 0 ? step_tokens / (micro_batches * static_cast<double>(options.cap)) : 0;
  stats.step_tokens_mean = step_tokens / (budget * static_cast<double>(counted));
  stats.micro_batches = micro_batches / static_cast<double>(ranks * counted);
  stats.padding = step_padded > 0 ? (step_padded - step_tokens) / step_padded : 0;
  stats.imbalance_tokens = mean_of(imbalances_tokens);
  stats.imbalance_cost = mean_of(imbalances_cost);
  stats.lower_bound_cost = mean_of(bounds);
  stats.step_mean_ratio = spread.ratio();
  stats.lag1 = spread.lag1();
  return stats;
}

void to_json(nlohmann::json& json, const PlanStats& stats) {
  json = {{"steps", stats.steps},
          {"minimum_steps", stats.minimum_steps},
          {"dropped", stats.dropped},
          {"duplicated", stats.duplicated},
          {"fill", stats.fill},
          {"padding", stats.padding},
          {"imbalance_tokens", stats.imbalance_tokens},
          {"imbalance_cost", stats.imbalance_cost},
          {"lower_bound_cost", stats.lower_bound_cost},
          {"step_mean_ratio", stats.step_mean_ratio},
          {"lag1", stats.lag1},
          {"step_tokens_mean", stats.step_tokens_mean},
          {"step_tokens_max", stats.step_tokens_max},
          {"micro_batches", stats.micro_batches}};
}

}  // namespace lockstep::data
