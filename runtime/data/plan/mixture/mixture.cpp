#include "runtime/data/plan/mixture/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/error.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

std::size_t Mixture::samples() const {
  std::size_t sum = 0;
  for (const MixturePart& part : parts) sum += part.samples;
  return sum;
}

std::size_t Mixture::range_of(std::uint64_t step) const {
  std::size_t range = 0;
  while (range + 1 < ranges.size() && ranges[range + 1].first_step <= step) ++range;
  return range;
}

std::uint64_t Mixture::end_of(std::size_t range) const {
  return range + 1 < ranges.size() ? std::min(steps, ranges[range + 1].first_step) : steps;
}

PlanOptions options_of_step(const Plan& plan, std::size_t step) {
  PlanOptions options = plan.options();
  if (plan.mixture() != nullptr) {
    const Mixture& mixture = plan.mixture()->mixture;
    options.longest = mixture.ranges[mixture.range_of(step)].longest;
  }
  return options;
}

void check_mixture(const Mixture& mixture, std::size_t source_samples) {
  if (mixture.parts.empty()) fail_usage("a mixture needs at least one data set");
  if (mixture.ranges.empty()) fail_usage("a mixture needs weights: at least one range, from step 0");
  if (mixture.steps == 0) fail_usage("a mixture needs a number of steps");
  for (const MixturePart& part : mixture.parts) {
    if (part.samples == 0) fail_usage("the mixture's data set '{}' has no samples", part.name);
  }
  if (mixture.samples() != source_samples) {
    fail_usage("the mixture's data sets have {} samples together, but the data have {}", mixture.samples(),
               source_samples);
  }
  if (mixture.ranges.front().first_step != 0) {
    fail_usage("the mixture's first range must begin at step 0, not {}", mixture.ranges.front().first_step);
  }
  for (std::size_t i = 0; i < mixture.ranges.size(); ++i) {
    const MixtureRange& range = mixture.ranges[i];
    if (i > 0 && range.first_step <= mixture.ranges[i - 1].first_step) {
      fail_usage("range {} of the mixture must begin after step {}, where range {} begins, not at step {}", i,
                 mixture.ranges[i - 1].first_step, i - 1, range.first_step);
    }
    if (range.weights.size() != mixture.parts.size()) {
      fail_usage("the mixture's range from step {} has {} weights for {} data sets", range.first_step,
                 range.weights.size(), mixture.parts.size());
    }
    double sum = 0;
    for (std::size_t part = 0; part < mixture.parts.size(); ++part) {
      const double weight = range.weights[part];
      if (!std::isfinite(weight) || weight < 0) {
        fail_usage("the weight of '{}' from step {} must be a finite number of at least 0, not {}",
                   mixture.parts[part].name, range.first_step, weight);
      }
      sum += weight;
    }
    if (!(sum > 0) || !std::isfinite(sum)) {
      fail_usage("the weights from step {} must have a finite sum above 0", range.first_step);
    }
  }
}

std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state) {
  const auto& position = state.position.mixture;
  if (!position || position->drawn.size() != mixture.parts.size()) {
    fail("the state does not belong to this mixture of {} data sets", mixture.parts.size());
  }
  std::vector<MixtureProgress> progress;
  for (std::size_t i = 0; i < mixture.parts.size(); ++i) {
    const MixturePart& part = mixture.parts[i];
    const std::uint64_t drawn = position->drawn[i];
    progress.push_back({part.name, drawn / part.samples, drawn % part.samples, part.samples});
  }
  return progress;
}

std::string fingerprint_of(const Mixture& mixture) {
  std::string name = "mixture-3-";
  for (const MixturePart& part : mixture.parts) fmt::format_to(std::back_inserter(name), "{}+", part.samples);
  for (const MixtureRange& range : mixture.ranges) {
    fmt::format_to(std::back_inserter(name), "-from{}", range.first_step);
    for (const double weight : range.weights) fmt::format_to(std::back_inserter(name), ":{}", weight);
    if (range.longest > 0) fmt::format_to(std::back_inserter(name), "<={}", range.longest);
  }
  return name;
}

}  // namespace lockstep::data
