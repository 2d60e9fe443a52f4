// Steps are to be as random as was asked for also where micro-batches hold few samples, so that several steps
// are fitted together.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "runtime/data/plan/plan_stats.h"
#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/plan_rules.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kSamples = 12'000;

struct Few {
  std::string name;
  std::uint64_t cap;
  std::vector<std::uint32_t> lengths;
};

// Lengths of which a part is `often`, and others as they come.
template <typename Other>
Few list_of(const std::string& name, std::uint64_t cap, double part, std::uint32_t often, Other&& other) {
  Few list{name, cap, std::vector<std::uint32_t>(kSamples)};
  std::mt19937 engine(3);
  std::uniform_real_distribution<double> unit(0, 1);
  for (std::uint32_t& length : list.lengths) length = unit(engine) < part ? often : other(engine);
  return list;
}

Few two_values(std::uint64_t cap, double part, std::uint32_t often, std::uint32_t other) {
  return list_of(fmt::format("{} of {} and {}", part, often, other), cap, part, often,
                 [other](std::mt19937&) { return other; });
}

// Documents that were cut into chunks as long as the cap: the last chunk of each is shorter.
Few chunks(double whole, double log_mean, double log_deviation) {
  return list_of(fmt::format("{} whole chunks, others around e^{}", whole, log_mean), 4096, whole, 4096,
                 [=](std::mt19937& engine) {
                   return clamped(std::lognormal_distribution<double>(log_mean, log_deviation)(engine), 4096);
                 });
}

std::vector<Few> lists_of_few() {
  return {two_values(16384, 0.5, 10, 8200),
          two_values(16384, 0.9, 10, 8200),
          two_values(16384, 0.1, 10, 8200),
          two_values(4096, 0.8, 100, 4000),
          two_values(16384, 0.7, 500, 9000),
          two_values(16384, 0.5, 3000, 9000),
          chunks(0.5, 6, 1.2),
          chunks(0.5, 7, 0.8),
          chunks(0.9, 6, 1.2),
          chunks(0.2, 6, 1.2),
          chunks(0, 7, 1)};
}

TEST(Randomness, FittedStepsStayWithinTheBudget) {
  for (const Few& list : lists_of_few()) {
    for (const auto& [ranks, accumulate] : {std::pair{2, 1}, {8, 1}, {8, 4}, {64, 1}}) {
      for (unsigned seed = 0; seed < 2; ++seed) {
        PlanOptions options{.ranks = ranks, .cap = list.cap, .accumulate = accumulate, .seed = seed};
        options.cost = {24576, 1};
        const std::string what = fmt::format("{}, {} x {}, seed {}", list.name, ranks, accumulate, seed);
        const Plan plan = make_plan(list.lengths, options);
        expect_valid(plan, list.lengths, what);
        const PlanStats stats = stats_of(plan, list.lengths);
        EXPECT_LE(stats.step_mean_ratio, 1.5) << what;
        options.randomness = 1000;
        const PlanStats free = stats_of(make_plan(list.lengths, options), list.lengths);
        EXPECT_LE(static_cast<double>(stats.steps), 1.08 * static_cast<double>(free.steps) + 1) << what;
      }
    }
  }
}

// Where a block ends and another follows, a few steps are left to fit together.
TEST(Randomness, EpochsOfSeveralBlocksStayWithinTheBudgetToo) {
  for (Few list : {two_values(16384, 0.5, 10, 8200), chunks(0.5, 6, 1.2)}) {
    while (list.lengths.size() < 700'000)
      for (std::size_t i = 0; i < kSamples; ++i) list.lengths.push_back(list.lengths[i]);
    for (const auto& [ranks, accumulate] : {std::pair{8, 1}, {8, 4}, {64, 1}}) {
      const PlanOptions options{
          .ranks = ranks, .cap = list.cap, .accumulate = accumulate, .cost = {24576, 1}};
      const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
      EXPECT_LE(stats.step_mean_ratio, 1.5) << fmt::format("{}, {} x {}", list.name, ranks, accumulate);
      EXPECT_EQ(stats.dropped + stats.duplicated, 0U);
    }
  }
}

TEST(Randomness, StepsOfManyMicroBatchesAreAsAlikeAsAskedFor) {
  for (const Few& list : lists_of_few()) {
    for (const auto& [ranks, accumulate] : {std::pair{8, 4}, {64, 1}}) {
      const PlanOptions options{
          .ranks = ranks, .cap = list.cap, .accumulate = accumulate, .cost = {24576, 1}, .randomness = 1};
      const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
      EXPECT_LE(stats.step_mean_ratio, 1) << fmt::format("{}, {} x {}", list.name, ranks, accumulate);
    }
  }
}

// A long one in each micro-batch, and room for all the others beside them.
TEST(Randomness, ShortSamplesAreSharedByStepsThatLongOnesMake) {
  const Few list = two_values(16384, 0.5, 10, 8200);
  const auto longs = static_cast<double>(std::count(list.lengths.begin(), list.lengths.end(), 8200U));
  for (const auto& [ranks, accumulate] : {std::pair{2, 1}, {8, 1}, {8, 4}, {64, 1}}) {
    for (const double bound : {0.3, 1.5}) {
      const PlanOptions options{
          .ranks = ranks, .cap = list.cap, .accumulate = accumulate, .randomness = bound};
      const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
      const std::string what = fmt::format("{} x {}, {}", ranks, accumulate, bound);
      EXPECT_LE(static_cast<double>(stats.steps), longs * 1.005 / (ranks * accumulate) + 2) << what;
      EXPECT_LE(stats.step_mean_ratio, bound) << what;
      EXPECT_LE(stats.imbalance_cost, 1.02) << what;
    }
  }
}

// Whole chunks leave no room beside them: there would have to be a step more for each two.
TEST(Randomness, GivesWayWhereItWouldTakeATenthMoreSteps) {
  const Few list = two_values(4096, 0.8, 100, 4000);
  PlanOptions options{.ranks = 2, .cap = list.cap, .randomness = 0.5};
  const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
  EXPECT_GT(stats.step_mean_ratio, 0.5);
  options.randomness = 1000;
  const PlanStats free = stats_of(make_plan(list.lengths, options), list.lengths);
  EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(free.steps));
}

// Rows that fill a micro-batch each cannot be shared out among more of them.
TEST(Randomness, OnlyTheLastPaddedStepHasEmptyMicroBatches) {
  std::mt19937 engine(1);
  for (const bool equal : {true, false}) {
    std::vector<std::uint32_t> lengths(999, 8193);
    if (!equal) {
      for (std::uint32_t& length : lengths) length = engine() % 2 == 0 ? 8200 : 10;
    }
    for (const auto& [ranks, accumulate] : {std::pair{1, 4}, {2, 4}, {8, 1}, {8, 4}}) {
      PlanOptions options{.ranks = ranks, .cap = 16384, .accumulate = accumulate, .padded = true};
      const Plan plan = make_plan(lengths, options);
      const std::string what = fmt::format("{} x {}", ranks, accumulate);
      expect_valid(plan, lengths, what);
      for (std::size_t step = 0; step + 1 < plan.steps(); ++step) {
        for (int rank = 0; rank < ranks; ++rank) {
          for (int m = 0; m < accumulate; ++m)
            EXPECT_FALSE(plan.micro_batch(step, rank, m).empty()) << what << ", step " << step;
        }
      }
      const auto batches = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(accumulate);
      if (!equal) continue;
      EXPECT_EQ(plan.steps(), (lengths.size() + batches - 1) / batches) << what;
    }
  }
}

}  // namespace
}  // namespace lockstep::data
