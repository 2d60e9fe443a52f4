// The mixture that is planned: the functions of Mixture (plan/options.h), and how much of it is used.
//
// Threads: values; safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

struct PlanState;

/// The mixture that a plan was made for, and how much of it the plan uses.
struct PlannedMixture {
  Mixture mixture;
  std::vector<std::uint64_t> drawn;  ///< samples drawn from each part, in all its epochs
  std::vector<SampleId> left;        ///< pieces of those samples that are in no step when the run ends
};

/// Throws UsageError if the mixture is wrong or does not have `source_samples` samples.
void check_mixture(const Mixture& mixture, std::size_t source_samples);

/// How much of each part is used in this state.
std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state);

/// Identifies the parts and weights. A resumed run must have the same ones; its number of steps may differ.
std::string fingerprint_of(const Mixture& mixture);

}  // namespace lockstep::data
