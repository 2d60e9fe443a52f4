#include "runtime/data/plan/even_steps.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace lockstep::data {

std::vector<std::vector<Group>> even_steps(std::span<const Group> groups, std::size_t batches,
                                           Random& random) {
  const std::size_t over = groups.size() % batches;
  std::vector<Group> full;
  std::vector<Group> rest;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const bool spare = (i + 1) * over / groups.size() > i * over / groups.size();
    (spare ? rest : full).push_back(groups[i]);
  }
  const std::size_t count = full.size() / batches;
  std::vector<std::vector<Group>> steps(count);
  std::vector<std::size_t> samples(count, 0);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t begin = 0; begin < full.size(); begin += count) {
    // The first of these have the fewest samples: they go where most samples are already.
    random.shuffle(std::span(order));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return samples[x] > samples[y]; });
    for (std::size_t i = 0; i < count; ++i) {
      steps[order[i]].push_back(full[begin + i]);
      samples[order[i]] += full[begin + i].samples();
    }
  }
  if (!rest.empty()) steps.push_back(std::move(rest));
  return steps;
}

RandomnessBudget budget_after(std::span<const std::vector<Group>> steps, RandomnessBudget budget) {
  for (const std::vector<Group>& groups : steps) {
    std::uint64_t tokens = 0;
    std::size_t samples = 0;
    for (const Group& group : groups) {
      tokens += group.tokens;
      samples += group.samples();
    }
    budget.spend(tokens, samples);
  }
  return budget;
}

}  // namespace lockstep::data
