#include "runtime/data/plan/level_steps.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/data/plan/rank_tree.h"

namespace lockstep::data {
namespace {

double tokens_of(const std::vector<Group>& groups) {
  return std::accumulate(groups.begin(), groups.end(), 0.0, [](double sum, const Group& group) {
    return sum + static_cast<double>(group.tokens);
  });
}

double samples_of(const std::vector<Group>& groups) {
  return std::accumulate(groups.begin(), groups.end(), 0.0, [](double sum, const Group& group) {
    return sum + static_cast<double>(group.samples());
  });
}

}  // namespace

LevelSteps::LevelSteps(const PlanOptions& options)
    : cap_(options.cap),
      cost_(options.cost),
      batches_(static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate)),
      fit_(options) {
}

bool LevelSteps::make(std::span<const Item> samples, std::size_t steps, std::uint32_t longest_short,
                      Random& random) {
  const auto first_short = std::partition_point(
      samples.begin(), samples.end(), [&](const Item& item) { return item.length > longest_short; });
  const auto longs = static_cast<std::size_t>(first_short - samples.begin());
  fit_.fit(samples.first(longs), fitted_, groups_);
  if (groups_.size() > steps * batches_) return false;
  deal_groups(steps, random);
  const std::span<const Item> shorts = samples.subspan(longs);
  double least = std::numeric_limits<double>::infinity();
  for (const Rule rule : {Rule::by_need, Rule::by_mean}) {
    if (!deal_short(shorts, rule)) continue;
    const double spread = spread_of(shorts);
    if (spread >= least) continue;
    least = spread;
    best_.swap(place_of_);
  }
  if (best_.size() != shorts.size() || least == std::numeric_limits<double>::infinity()) return false;
  lay_out(shorts);
  return std::all_of(steps_.begin(), steps_.end(),
                     [this](std::vector<Group>& groups) { return leave_none_empty(groups); });
}

// Halves the costliest micro-batches of a step, until each has a sample. False: there are too few.
bool LevelSteps::leave_none_empty(std::vector<Group>& groups) {
  for (Group& empty : groups) {
    if (empty.samples() > 0) continue;
    const auto costliest = std::max_element(groups.begin(), groups.end(), [](const Group& x, const Group& y) {
      return (x.samples() > 1 ? x.cost : -1) < (y.samples() > 1 ? y.cost : -1);
    });
    if (costliest->samples() < 2) return false;
    empty = {costliest->begin + (costliest->samples() + 1) / 2, costliest->end, 0, 0};
    for (std::size_t i = empty.begin; i < empty.end; ++i) {
      empty.tokens += items_[i].length;
      empty.cost += cost_.of(items_[i].length);
    }
    costliest->end = empty.begin;
    costliest->tokens -= empty.tokens;
    costliest->cost -= empty.cost;
  }
  return true;
}

// Fullest first to the steps that have the fewest tokens, each as many as any other: what is left free is
// then the same in all.
void LevelSteps::deal_groups(std::size_t steps, Random& random) {
  groups_.resize(steps * batches_, Group{0, 0, 0, 0});
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const Group& x, const Group& y) { return x.tokens > y.tokens; });
  steps_.assign(steps, {});
  std::vector<std::uint64_t> tokens(steps, 0);
  std::vector<std::size_t> order(steps);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t begin = 0; begin < groups_.size(); begin += steps) {
    random.shuffle(std::span(order));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return tokens[x] < tokens[y]; });
    for (std::size_t i = 0; i < steps; ++i) {
      steps_[order[i]].push_back(groups_[begin + i]);
      tokens[order[i]] += groups_[begin + i].tokens;
    }
  }
}

// Longest first, each to the step whose turn it is by the rule, there to the emptiest micro-batch.
bool LevelSteps::deal_short(std::span<const Item> shorts, Rule rule) {
  const std::size_t count = steps_.size();
  std::vector<double> tokens(count);
  std::vector<double> samples(count);
  std::vector<RankTree> emptiest(count, RankTree(batches_));
  filled_.resize(count * batches_);
  for (std::size_t step = 0; step < count; ++step) {
    tokens[step] = tokens_of(steps_[step]);
    samples[step] = samples_of(steps_[step]);
    const auto filled = std::span(filled_).subspan(step * batches_, batches_);
    std::transform(steps_[step].begin(), steps_[step].end(), filled.begin(),
                   [](const Group& group) { return static_cast<double>(group.tokens); });
    emptiest[step].fill(filled);
  }
  const auto mean = [count](const std::vector<double>& values, double more) {
    return (std::accumulate(values.begin(), values.end(), 0.0) + more) / static_cast<double>(count);
  };
  const double all_tokens = mean(tokens, static_cast<double>(data::tokens_of(shorts)));
  const double all_samples = mean(samples, static_cast<double>(shorts.size()));
  // The least has its turn.
  const auto key = [&](std::size_t step) {
    if (rule == Rule::by_mean) return tokens[step] > 0 ? samples[step] / tokens[step] : 0;
    return std::max(all_samples - samples[step], 1e-6) / std::max(all_tokens - tokens[step], 1e-6);
  };
  std::vector<double> keys(count);
  for (std::size_t step = 0; step < count; ++step) keys[step] = key(step);
  RankTree next(count);
  next.fill(keys);
  const auto has_room = [&](std::size_t step, std::uint32_t length) {
    return filled_[step * batches_ + emptiest[step].least()] + length <= static_cast<double>(cap_);
  };
  place_of_.clear();
  for (const Item& item : shorts) {
    while (!next.empty() && !has_room(next.least(), item.length)) next.take_out(next.least());
    if (next.empty()) {
      // Items only get shorter: steps that were too full for the last ones may have room again.
      for (std::size_t step = 0; step < count; ++step) {
        if (has_room(step, item.length)) next.set(step, key(step));
      }
      if (next.empty()) return false;
    }
    const std::size_t step = next.least();
    const std::size_t batch = emptiest[step].least();
    const std::size_t place = step * batches_ + batch;
    place_of_.push_back(place);
    filled_[place] += item.length;
    emptiest[step].set(batch, filled_[place]);
    tokens[step] += item.length;
    samples[step] += 1;
    next.set(step, key(step));
  }
  return true;
}

// How far the steps' mean lengths lie apart.
double LevelSteps::spread_of(std::span<const Item> shorts) const {
  std::vector<double> samples(steps_.size());
  for (std::size_t step = 0; step < steps_.size(); ++step) samples[step] = samples_of(steps_[step]);
  for (std::size_t i = 0; i < shorts.size(); ++i) samples[place_of_[i] / batches_] += 1;
  double sum = 0;
  double squares = 0;
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    const auto filled = std::span(filled_).subspan(step * batches_, batches_);
    const double tokens = std::accumulate(filled.begin(), filled.end(), 0.0);
    const double mean = samples[step] > 0 ? tokens / samples[step] : 0;
    sum += mean;
    squares += mean * mean;
  }
  return squares - sum * sum / static_cast<double>(steps_.size());
}

// Brings each group's samples together in items_.
void LevelSteps::lay_out(std::span<const Item> shorts) {
  std::vector<std::size_t> ends(steps_.size() * batches_, 0);
  for (const std::size_t place : best_) ++ends[place];
  items_.resize(fitted_.size() + shorts.size());
  std::size_t at = 0;
  for (std::size_t place = 0; place < ends.size(); ++place) {
    Group& group = steps_[place / batches_][place % batches_];
    const std::size_t begin = at;
    for (std::size_t i = group.begin; i < group.end; ++i) items_[at++] = fitted_[i];
    at += std::exchange(ends[place], at);
    group.begin = begin;
    group.end = at;
  }
  for (std::size_t i = 0; i < shorts.size(); ++i) {
    Group& group = steps_[best_[i] / batches_][best_[i] % batches_];
    group.tokens += shorts[i].length;
    group.cost += cost_.of(shorts[i].length);
    items_[ends[best_[i]]++] = shorts[i];
  }
}

}  // namespace lockstep::data
