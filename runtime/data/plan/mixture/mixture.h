// Several data sets trained on together, each with a weight: its share of the tokens. Each is gone through
// epoch by epoch, in a new order every time, and every sample appears once in each of its data set's epochs;
// so a small one with a great weight is repeated more often than a large one. A mixture is one run of so many
// optimizer steps, all of them full; weights and the longest sample may change from step to step (a
// curriculum).
//
//   Mixture mixture{.parts = {{"web", web_samples}, {"books", book_samples}},
//                   .ranges = {{.first_step = 0, .weights = {0.9, 0.1}, .longest = 512},
//                              {.first_step = 2000, .weights = {0.6, 0.4}}},
//                   .steps = 10000};
//
// Threads: values; safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/plan.h"
#include "runtime/data/plan/plan_state.h"

namespace lockstep::data {

/// One of the data sets: so many neighbouring samples of the source, after those of the parts before it.
struct MixturePart {
  std::string name;  ///< stands in errors
  std::size_t samples = 0;
};

/// From this step on, up to the next range.
struct MixtureRange {
  std::uint64_t first_step = 0;
  /// A number for each part, in any unit; 0: none of it.
  std::vector<double> weights;
  /// Longer samples are cut to their first so many tokens; 0: as they are.
  std::uint64_t longest = 0;
};

struct Mixture {
  std::vector<MixturePart> parts;
  std::vector<MixtureRange> ranges;  ///< the first one from step 0
  std::uint64_t steps = 0;           ///< of the whole run; a run that is resumed may have more than before

  /// Of all parts.
  std::size_t samples() const;
  /// The range of a step, and the first step after it (after the last range: steps).
  std::size_t range_of(std::uint64_t step) const;
  std::uint64_t end_of(std::size_t range) const;
};

/// What the plan of a whole run says beside its steps.
struct PlannedMixture {
  Mixture mixture;
  std::vector<std::uint64_t> drawn;  ///< samples of each part, in all its epochs
  std::vector<SampleId> left;        ///< pieces of those that no step had yet when the run ended
};

/// How far a part is.
struct MixtureProgress {
  std::string name;
  std::uint64_t epoch = 0;    ///< that it is in, from 0
  std::uint64_t samples = 0;  ///< of that epoch, drawn so far
  std::uint64_t of = 0;       ///< samples of an epoch
};

/// Plans a whole run, as make_plan() does an epoch: the plan has a mixture().
Plan make_mixture_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
                       const Mixture& mixture, std::string fingerprint);

/// The options of the range that a step is in; those of the plan where it is not of a mixture.
PlanOptions options_of_step(const Plan& plan, std::size_t step);

/// Throws UsageError saying what is wrong: with itself, or for a source of so many samples.
void check_mixture(const Mixture& mixture, std::size_t source_samples);

/// How far the parts are in this state.
std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state);

/// What must be the same to go on: parts, weights, ranges; not the number of steps.
std::string fingerprint_of(const Mixture& mixture);

}  // namespace lockstep::data
