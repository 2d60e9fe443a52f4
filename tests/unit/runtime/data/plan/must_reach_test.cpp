// The figures that the planner must reach on real lists of lengths (tests/data/lengths) and
// on one with a heavy tail.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/data/lengths/read_lengths.h"
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"

namespace lockstep::data {
namespace {

constexpr Cost kCost = {24576, 1};

PlanStats stats_with(const Lengths& lengths, const PlanOptions& options) {
  const Plan plan = make_plan(lengths.tokens, options, lengths.fingerprint);
  const PlanStats stats = stats_of(plan, lengths.tokens);
  EXPECT_EQ(stats.dropped + stats.duplicated, 0U);
  EXPECT_EQ(check_plan(plan, lengths).dropped, stats.dropped);
  return stats;
}

double steps_by_minimum(const PlanStats& stats) {
  return static_cast<double>(stats.steps) / static_cast<double>(stats.minimum_steps);
}

Lengths conversations() {
  std::vector<std::uint32_t> tokens = read_lengths(LOCKSTEP_TEST_DATA "/lengths/azure_llm_conv_2023.txt");
  return {std::move(tokens), "conversations"};
}

// 12,000 lengths of mean 12,600: 4200 / (1 - u)^(1 / 1.35), cut to 900 ... 126,000.
Lengths heavy_tail() {
  Lengths lengths;
  Random random(1, 0, 0);
  double sum = 0;
  for (int i = 0; i < 12'000; ++i) {
    const double u = std::ldexp(static_cast<double>(random.next() >> 11U), -53);
    const double length = std::clamp(4200 / std::pow(1 - u, 1 / 1.35), 900.0, 126'000.0);
    lengths.tokens.push_back(static_cast<std::uint32_t>(length));
    sum += length;
  }
  EXPECT_NEAR(sum / 12'000, 12'600, 300);
  lengths.fingerprint = fingerprint_of(lengths.tokens);
  return lengths;
}

TEST(MustReach, Conversations) {
  const Lengths lengths = conversations();
  for (const int ranks : {8, 64}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const PlanStats stats =
          stats_with(lengths, {.ranks = ranks, .cap = 16384, .cost = kCost, .seed = seed});
      const std::string what = fmt::format("{} ranks, seed {}", ranks, seed);
      EXPECT_LE(stats.imbalance_cost, 1.001) << what;
      EXPECT_LE(stats.step_mean_ratio, 1.3) << what;
      EXPECT_LE(steps_by_minimum(stats), 1.08) << what;
    }
  }
}

TEST(MustReach, MillionsOfShortSamples) {
  for (const char* name : {"wikipedia_bert_seq512_histogram.csv", "squad11_seq384_histogram.csv"}) {
    const Lengths lengths =
        lengths_from_histogram(std::string(LOCKSTEP_TEST_DATA "/lengths/") + name, 2'000'000);
    for (const int ranks : {8, 64, 512}) {
      const PlanStats stats = stats_with(lengths, {.ranks = ranks, .cap = 16384, .cost = kCost});
      const std::string what = fmt::format("{}, {} ranks", name, ranks);
      EXPECT_LE(stats.imbalance_cost, 1.001) << what;
      EXPECT_LE(stats.step_mean_ratio, 1.1) << what;
      EXPECT_LE(steps_by_minimum(stats), 1.06) << what;
    }
  }
}

TEST(MustReach, AHeavyTail) {
  const Lengths lengths = heavy_tail();
  struct Case {
    int ranks;
    int accumulate;
    double stretch;
    double imbalance;
    double ratio;  // 0: any
    double steps;
  };
  for (const Case& c : {Case{8, 4, 1.5, 1.001, 1.3, 1.08}, Case{64, 4, 1.5, 1.001, 1.3, 1.08},
                        Case{8, 2, 1.5, 1.005, 1.3, 0}, Case{64, 2, 1.5, 1.005, 1.3, 0},
                        Case{8, 1, 1.5, 1.45, 0, 0}, Case{8, 1, 2, 1.2, 0, 0}, Case{8, 1, 3, 1.01, 0, 0}}) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const PlanStats stats = stats_with(lengths, {.ranks = c.ranks,
                                                   .cap = 131'072,
                                                   .accumulate = c.accumulate,
                                                   .step_stretch = c.stretch,
                                                   .cost = kCost,
                                                   .seed = seed});
      const std::string what =
          fmt::format("{} ranks x {}, stretch {}, seed {}", c.ranks, c.accumulate, c.stretch, seed);
      EXPECT_LE(stats.imbalance_cost, c.imbalance) << what;
      if (c.ratio > 0) {
        EXPECT_LE(stats.step_mean_ratio, c.ratio) << what;
      }
      if (c.steps > 0) {
        EXPECT_LE(steps_by_minimum(stats), c.steps) << what;
      }
    }
  }
}

TEST(MustReach, PaddedConversations) {
  const Lengths lengths = conversations();
  struct Case {
    int accumulate;
    double padding;
    double imbalance;
  };
  for (const Case& c : {Case{1, 0.016, 1.088}, Case{2, 0.009, 1.024}, Case{4, 0.006, 1.006}}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const PlanStats stats = stats_with(lengths, {.ranks = 8,
                                                   .cap = 16384,
                                                   .accumulate = c.accumulate,
                                                   .cost = kCost,
                                                   .seed = seed,
                                                   .padded = true});
      const std::string what = fmt::format("accumulate {}, seed {}", c.accumulate, seed);
      EXPECT_LE(stats.padding, c.padding) << what;
      EXPECT_LE(stats.imbalance_cost, c.imbalance) << what;
    }
  }
}

TEST(MustReach, PaddedConversationsInStepsOfGivenTokens) {
  const PlanStats stats = stats_with(
      conversations(),
      {.ranks = 8, .cap = 16384, .step_tokens = 4 * 8 * 16384 * 95 / 100, .cost = kCost, .padded = true});
  EXPECT_LE(stats.padding, 0.006);
  EXPECT_LE(stats.imbalance_cost, 1.006);
}

}  // namespace
}  // namespace lockstep::data
