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

inline void expect_valid(const Plan& plan, const std::vector<std::uint32_t>& lengths,
                         const std::string& what) {
  const PlanOptions& options = plan.options();
  ASSERT_EQ(plan.ends().size() % static_cast<std::size_t>(options.ranks * options.accumulate), 0U) << what;
  std::vector<int> seen(lengths.size());
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    std::size_t samples = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      for (int m = 0; m < options.accumulate; ++m) {
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        for (const SampleId id : plan.micro_batch(step, rank, m)) {
          ASSERT_LT(id, lengths.size()) << what;
          ++seen[id];
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
  EXPECT_THAT(seen, testing::Each(1)) << what;
}

}  // namespace lockstep::data
