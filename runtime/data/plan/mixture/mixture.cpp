#include "runtime/data/plan/mixture/mixture.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <numeric>

#include "common/error.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

std::size_t Mixture::samples() const {
  std::size_t sum = 0;
  for (const MixturePart& part : parts) sum += part.samples;
  return sum;
}

void check_mixture(const Mixture& mixture, std::size_t source_samples) {
  if (mixture.parts.empty()) fail_usage("a mixture needs at least one data set");
  if (mixture.steps == 0) fail_usage("a mixture needs a number of steps");
  for (const MixturePart& part : mixture.parts) {
    if (part.samples == 0) fail_usage("the mixture's data set '{}' has no samples", part.name);
  }
  if (mixture.samples() != source_samples) {
    fail_usage("the mixture's data sets have {} samples together, but the data have {}", mixture.samples(),
               source_samples);
  }
  if (mixture.weights.size() != mixture.parts.size()) {
    fail_usage("the mixture has {} weights for {} data sets", mixture.weights.size(), mixture.parts.size());
  }
  for (std::size_t part = 0; part < mixture.parts.size(); ++part) {
    const double weight = mixture.weights[part];
    if (!std::isfinite(weight) || !(weight > 0)) {
      fail_usage(
          "the weight of '{}' must be a finite number above 0, not {}: leave out a data set that is not used",
          mixture.parts[part].name, weight);
    }
  }
  if (!std::isfinite(std::accumulate(mixture.weights.begin(), mixture.weights.end(), 0.0)))
    fail_usage("the mixture's weights must have a finite sum");
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
  std::string name = "mixture-4-";
  for (const MixturePart& part : mixture.parts) fmt::format_to(std::back_inserter(name), "{}+", part.samples);
  for (const double weight : mixture.weights) fmt::format_to(std::back_inserter(name), ":{}", weight);
  return name;
}

}  // namespace lockstep::data
