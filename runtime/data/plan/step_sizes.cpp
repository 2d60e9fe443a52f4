#include "runtime/data/plan/step_sizes.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::data {

std::string describe_step_sizes(const Plan& plan, std::span<const std::uint32_t> lengths) {
  const std::size_t steps = std::max<std::size_t>(plan.steps(), 2) - 1;
  std::uint64_t all = 0;
  std::uint64_t largest = 0;
  for (std::size_t step = 0; step < std::min(steps, plan.steps()); ++step) {
    std::uint64_t tokens = 0;
    for (const SampleId id : plan.step_samples(step))
      tokens += planned_length(id, lengths[sample_of(id)], plan.options());
    all += tokens;
    largest = std::max(largest, tokens);
  }
  const auto budget = static_cast<double>(step_budget(plan.options()));
  return fmt::format(
      "steps hold {:.2f} of the {} tokens of step_tokens on average, and at most {:.2f} ({} step{})",
      static_cast<double>(all) / budget / static_cast<double>(steps), step_budget(plan.options()),
      static_cast<double>(largest) / budget, steps, steps == 1 ? "" : "s");
}

}  // namespace lockstep::data
