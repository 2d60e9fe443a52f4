// A mixture trains on several data sets together. Each has a weight: its share of the tokens. Each data set
// is used epoch by epoch, in a new order every time, and every sample appears once in each epoch of its
// data set; so a small data set with a large weight is repeated more often than a large one. A mixture is
// one run of a given number of optimizer steps, all of them full. Weights and the longest sample may change
// from step to step (a curriculum).
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
#include <string>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

class Plan;
struct PlanState;

/// One of the data sets: consecutive samples of the source, after those of the parts before it.
struct MixturePart {
  std::string name;  ///< for messages
  std::size_t samples = 0;
};

/// The steps from `first_step` to the next range.
struct MixtureRange {
  std::uint64_t first_step = 0;
  /// One number for each part, in any unit; 0: the range uses no sample of it.
  std::vector<double> weights;
  /// Longer samples are cut to their first `longest` tokens; 0: not cut.
  std::uint64_t longest = 0;
};

struct Mixture {
  std::vector<MixturePart> parts;
  std::vector<MixtureRange> ranges;  ///< the first one from step 0
  std::uint64_t steps = 0;           ///< of the whole run; a resumed run may have more than before

  /// The samples of all parts.
  std::size_t samples() const;
  /// The range that contains the step.
  std::size_t range_of(std::uint64_t step) const;
  /// The first step after the range.
  std::uint64_t end_of(std::size_t range) const;
};

/// The mixture that a plan was made for, and how much of it the plan uses.
struct PlannedMixture {
  Mixture mixture;
  std::vector<std::uint64_t> drawn;  ///< samples drawn from each part, in all its epochs
  std::vector<SampleId> left;        ///< pieces of those samples that are in no step when the run ends
};

/// How much of a part is used.
struct MixtureProgress {
  std::string name;
  std::uint64_t epoch = 0;          ///< the part's current epoch, from 0
  std::uint64_t samples = 0;        ///< samples drawn in that epoch
  std::uint64_t epoch_samples = 0;  ///< samples of an epoch
};

/// The plan's options, with `longest` of the range that contains the step.
PlanOptions options_of_step(const Plan& plan, std::size_t step);

/// Throws UsageError if the mixture is wrong or does not have `source_samples` samples.
void check_mixture(const Mixture& mixture, std::size_t source_samples);

/// How much of each part is used in this state.
std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state);

/// Identifies the parts, weights and ranges. A resumed run must have the same ones; its number of steps may
/// differ.
std::string fingerprint_of(const Mixture& mixture);

}  // namespace lockstep::data
