#include "runtime/data/plan/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"

namespace lockstep::data {
namespace {

constexpr double kWorthALine = 1.05;
constexpr double kEven = 1.02;
// So many samples tell enough of an epoch, and are planned in milliseconds.
constexpr std::size_t kMaxPlanned = 65'536;
constexpr std::size_t kPlannedPerRank = 256;
// The last step is not counted, and the imbalance of a few steps says little.
constexpr std::size_t kFewSteps = 8;

// Every n-th length, so that sorted data is represented too.
struct Part {
  std::vector<std::uint32_t> lengths;
  double of_all = 1;  // the number of all ÷ the number of these
};

Part part_of(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  const std::size_t count =
      std::max(kMaxPlanned, kPlannedPerRank * static_cast<std::size_t>(std::max(1, options.ranks)));
  const std::size_t every = (lengths.size() + count - 1) / std::max<std::size_t>(1, count);
  if (every <= 1) return {.lengths = {lengths.begin(), lengths.end()}};
  Part part;
  for (std::size_t i = 0; i < lengths.size(); i += every) part.lengths.push_back(lengths[i]);
  part.of_all = static_cast<double>(lengths.size()) / static_cast<double>(part.lengths.size());
  return part;
}

StepSize measure(const Part& part, const PlanOptions& options) {
  const Plan plan = make_plan(part.lengths, options, "part");
  const PlanStats stats = stats_of(plan, part.lengths);
  return {.accumulate = options.accumulate,
          .step_tokens = step_budget(options),
          .imbalance_cost = stats.imbalance_cost,
          .steps = static_cast<std::size_t>(std::lround(static_cast<double>(stats.steps) * part.of_all))};
}

std::size_t recommended_of(const std::vector<StepSize>& rows) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < rows.size() && rows[best].imbalance_cost > kEven; ++i) {
    if (rows[i].imbalance_cost < rows[best].imbalance_cost && rows[i].steps >= kFewSteps) best = i;
  }
  return best;
}

Suggestion suggest_for(const Part& part, PlanOptions options) {
  Suggestion suggestion;
  for (const int accumulate : {1, 2, 4, 8}) {
    options.accumulate = accumulate;
    options.step_tokens = 0;
    const std::uint64_t budget = step_budget(options);
    for (const std::uint64_t step_tokens : {std::max<std::uint64_t>(1, budget / 4 * 3), budget}) {
      options.step_tokens = step_tokens;
      suggestion.rows.push_back(measure(part, options));
    }
  }
  suggestion.recommended = recommended_of(suggestion.rows);
  return suggestion;
}

}  // namespace

Suggestion suggest(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  return suggest_for(part_of(lengths, options), options);
}

std::optional<std::string> advice_on_step_size(std::span<const std::uint32_t> lengths,
                                               const PlanOptions& options) {
  if (options.ranks < 2) return std::nullopt;
  const Part part = part_of(lengths, options);
  const StepSize own = measure(part, options);
  if (own.imbalance_cost <= kWorthALine || own.steps < kFewSteps) return std::nullopt;
  const Suggestion suggestion = suggest_for(part, options);
  const StepSize& best = suggestion.best();
  const auto percent = [](const StepSize& size) { return 100 * (size.imbalance_cost - 1); };
  const std::string finding = fmt::format(
      "the slowest rank of a step has {:.0f} % more work than the mean, and the others wait for it",
      percent(own));
  // The differences come from single samples, which no size of steps distributes better.
  if (best.imbalance_cost - 1 > (own.imbalance_cost - 1) / 2) {
    return fmt::format(
        "{}; larger steps help little ({:.0f} % with accumulate = {}): split long samples (plan.too_long), or raise plan.step_stretch",
        finding, percent(best), best.accumulate);
  }
  return fmt::format(
      "{}; plan.accumulate = {}, plan.step_tokens = {} reduces this to {:.1f} % (lockstep-plan suggest shows the choices)",
      finding, best.accumulate, best.step_tokens, percent(best));
}

}  // namespace lockstep::data
