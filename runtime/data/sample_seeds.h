// Seeds for user code that runs on samples.
//
// Threads: safe from any.
#pragma once

#include <cstdint>

#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// The same for a sample and epoch on any worker and rank.
inline std::uint64_t sample_seed(const PlanOptions& plan, std::uint64_t epoch, SampleId id) {
  return Random(plan.seed, epoch, id).next();
}

/// A different seed for each worker of each rank.
inline std::uint64_t worker_seed(const PlanOptions& plan, std::uint64_t epoch, int rank, int worker) {
  const auto ranks = static_cast<std::uint64_t>(plan.ranks);
  return Random(plan.seed, ~epoch,
                static_cast<std::uint64_t>(worker) * ranks + static_cast<std::uint64_t>(rank))
      .next();
}

}  // namespace lockstep::data
