#include "runtime/data/plan/tool/plan_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/runtime/data/plan/plan_rules.h"

namespace lockstep::data {
namespace {

// A plan whose ranks have one micro-batch in each step.
Plan plan_with(const PlanOptions& options, std::size_t samples,
               const std::vector<std::vector<std::vector<SampleId>>>& steps) {
  Nested all;
  for (const auto& step : steps) {
    auto& ranks = all.emplace_back();
    for (const std::vector<SampleId>& batch : step) ranks.push_back({batch});
  }
  return plan_of(options, samples, all);
}

TEST(PlanStats, AreEqualToNumbersCountedByHand) {
  // Two full steps and a last step, on two ranks.
  const std::vector<std::uint32_t> lengths = {6, 2, 4, 4, 8, 2, 2};
  const PlanOptions options{.ranks = 2, .cap = 10, .cost = {1, 1}};
  const Plan plan = plan_with(options, 7, {{{0, 1}, {2, 3}}, {{4}, {5}}, {{6}, {}}});
  const PlanStats stats = stats_of(plan, lengths);
  EXPECT_EQ(stats.steps, 3U);
  EXPECT_EQ(stats.minimum_steps, 2U);  // 28 tokens, 20 a step
  EXPECT_EQ(stats.dropped, 0U);
  EXPECT_EQ(stats.duplicated, 0U);
  EXPECT_DOUBLE_EQ(stats.fill, 26.0 / 40);
  EXPECT_DOUBLE_EQ(stats.padding, 0);
  EXPECT_DOUBLE_EQ(stats.imbalance_tokens, (1 + 8 / 5.0) / 2);
  // Costs: {42 + 6, 20 + 20}, {72, 6}.
  EXPECT_DOUBLE_EQ(stats.imbalance_cost, (48 / 44.0 + 72 / 39.0) / 2);
  // Step 0: the costliest sample costs 42 and the two cheapest of the three costliest cost 20 + 20, so the
  // mean of 44 is the bound.
  EXPECT_DOUBLE_EQ(stats.lower_bound_cost, (1 + 72 / 39.0) / 2);
  // The mean lengths 4 and 5 deviate by 0.5; random draws would have 4 and 2 samples.
  const double mean = 28.0 / 7;
  const double variance = (36 + 4 + 16 + 16 + 64 + 4 + 4) / 7.0 - mean * mean;
  EXPECT_DOUBLE_EQ(stats.step_mean_ratio, 0.5 / std::sqrt(variance * (1 / 4.0 + 1 / 2.0) / 2));
  EXPECT_DOUBLE_EQ(stats.lag1, 0);
  // The budget is 0.95 x 20 tokens; steps of 16 and 10.
  EXPECT_DOUBLE_EQ(stats.step_tokens_mean, 13.0 / 19);
  EXPECT_DOUBLE_EQ(stats.step_tokens_max, 16.0 / 19);
  EXPECT_DOUBLE_EQ(stats.micro_batches, 1);
}

TEST(PlanStats, RanksMayHaveAnyNumberOfMicroBatches) {
  const std::vector<std::uint32_t> lengths = {6, 2, 4, 4, 8, 2, 2};
  const PlanOptions options{.ranks = 3, .cap = 10, .step_tokens = 16, .cost = {1, 0}};
  const Plan plan =
      plan_of(options, 7, {{{{0}, {1, 2}}, {{3}}, {}}, {{{}, {4}}, {{5}}, {{6}}}, {{}, {}, {}}});
  const PlanStats stats = stats_of(plan, lengths);
  EXPECT_DOUBLE_EQ(stats.micro_batches, 7.0 / 6);
  EXPECT_DOUBLE_EQ(stats.fill, 28.0 / 70) << "empty micro-batches count, because they take time";
  EXPECT_DOUBLE_EQ(stats.step_tokens_mean, 28.0 / 32);
  EXPECT_DOUBLE_EQ(stats.step_tokens_max, 1);
  EXPECT_EQ(stats.minimum_steps, 2U) << "steps of `step_tokens` tokens";
  EXPECT_DOUBLE_EQ(stats.imbalance_tokens, (12 / (16 / 3.0) + 8 / 4.0) / 2);
  EXPECT_DOUBLE_EQ(stats.imbalance_cost, (12 / (16 / 3.0) + 8 / 4.0) / 2);
}

TEST(PlanStats, CountsMissingAndDuplicatedSamples) {
  const std::vector<std::uint32_t> lengths = {1, 1, 1, 1};
  const Plan plan = plan_with({.ranks = 1, .cap = 10}, 4, {{{0, 1, 1, 1}}});
  const PlanStats stats = stats_of(plan, lengths);
  EXPECT_EQ(stats.dropped, 2U);
  EXPECT_EQ(stats.duplicated, 2U);
}

TEST(PlanStats, PaddingFillsRowsUpToTheLongest) {
  const std::vector<std::uint32_t> lengths = {4, 2, 3, 3};
  const PlanOptions options{.ranks = 2, .cap = 10, .cost = {1, 0}, .padded = true, .pad_multiple = 1};
  const Plan plan = plan_with(options, 4, {{{0, 1}, {2, 3}}});
  const PlanStats stats = stats_of(plan, lengths);
  EXPECT_DOUBLE_EQ(stats.padding, 2.0 / 14);
  EXPECT_DOUBLE_EQ(stats.fill, 12.0 / 20);
  EXPECT_DOUBLE_EQ(stats.imbalance_cost, 8 / 7.0);
}

TEST(PlanStats, RowsArePaddedToTheMultiple) {
  const std::vector<std::uint32_t> lengths = {5, 9};
  const PlanOptions options{.ranks = 2, .cap = 100, .cost = {1, 0}, .padded = true, .pad_multiple = 8};
  EXPECT_DOUBLE_EQ(stats_of(plan_with(options, 2, {{{0}, {1}}}), lengths).padding, (3.0 + 7) / 24);
  EXPECT_EQ(padded_length(97, 8, 100), 100U);  // not over the cap
}

TEST(PlanStats, TwoOfThreeLongSamplesAreTheBoundOfTwoRanks) {
  const std::vector<std::uint32_t> lengths = {10, 10, 10};
  const Plan plan = plan_with({.ranks = 2, .cap = 30}, 3, {{{0, 1}, {2}}});
  EXPECT_DOUBLE_EQ(stats_of(plan, lengths).lower_bound_cost, 20 / 15.0);
}

TEST(PlanStats, AlternatingStepsCorrelateNegatively) {
  std::vector<std::uint32_t> lengths;
  std::vector<std::vector<std::vector<SampleId>>> steps;
  for (SampleId i = 0; i < 40; ++i) {
    lengths.push_back(i % 2 == 0 ? 5 : 10);
    steps.push_back({{i}});
  }
  const PlanStats stats = stats_of(plan_with({.ranks = 1, .cap = 10}, 40, steps), lengths);
  EXPECT_NEAR(stats.lag1, -0.95, 0.05);
  EXPECT_NEAR(stats.step_mean_ratio, 1, 0.01);
}

TEST(PlanStats, AnEpochWithoutSamplesHasNoSteps) {
  const PlanStats stats = stats_of(Plan({.ranks = 2, .cap = 10}, 0, ""), {});
  EXPECT_EQ(stats.steps, 0U);
  EXPECT_EQ(stats.minimum_steps, 0U);
}

}  // namespace
}  // namespace lockstep::data
