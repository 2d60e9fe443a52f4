// Seeds of the code that users run on samples.
//
// Threads: safe from any.
#pragma once

#include <cstdint>

#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// The same for a sample in an epoch, wherever it runs.
inline std::uint64_t sample_seed(const PlanOptions& plan, std::uint64_t epoch, SampleId id) {
  return Random(plan.seed, epoch, id).next();
}

/// Differs between workers and ranks.
inline std::uint64_t worker_seed(const PlanOptions& plan, std::uint64_t epoch, int rank, int worker) {
  const auto ranks = static_cast<std::uint64_t>(plan.ranks);
  return Random(plan.seed, ~epoch,
                static_cast<std::uint64_t>(worker) * ranks + static_cast<std::uint64_t>(rank))
      .next();
}

}  // namespace lockstep::data
