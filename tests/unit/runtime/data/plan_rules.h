// The rules that every plan keeps, said again in the simplest way.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// How often each sample is used, by a plan of which every step must have some and no micro-batch may be over
/// the cap.
inline std::vector<int> uses_under_the_cap(const Plan& plan, const std::vector<std::uint32_t>& lengths,
                                           const std::string& what) {
  const PlanOptions& options = plan.options();
  EXPECT_EQ(plan.ends().size() % static_cast<std::size_t>(options.ranks * options.accumulate), 0U) << what;
  std::vector<int> uses(lengths.size());
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    std::size_t samples = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      for (int m = 0; m < options.accumulate; ++m) {
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        for (const SampleId id : plan.micro_batch(step, rank, m)) {
          ++uses.at(id);
          ++samples;
          sum += lengths[id];
          longest = std::max<std::uint64_t>(longest, lengths[id]);
        }
        if (options.padded) sum = longest * plan.micro_batch(step, rank, m).size();
        EXPECT_LE(sum, options.cap) << what << ", step " << step << ", rank " << rank;
      }
    }
    EXPECT_GT(samples, 0U) << what << ": step " << step << " is empty";
  }
  return uses;
}

inline void expect_valid(const Plan& plan, const std::vector<std::uint32_t>& lengths,
                         const std::string& what) {
  EXPECT_THAT(uses_under_the_cap(plan, lengths, what), testing::Each(1)) << what;
}

}  // namespace lockstep::data
