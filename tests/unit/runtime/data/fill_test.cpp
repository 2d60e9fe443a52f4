// How full micro-batches are that hold few samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "common/error.h"
#include "runtime/data/plan/lengths.h"
#include "runtime/data/plan/plan_stats.h"
#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/plan_rules.h"

namespace lockstep::data {
namespace {

TEST(Planner, FillsMicroBatchesThatHoldOneOrTwoSamples) {
  // As texts cut at the cap: a quarter of the samples fill a micro-batch alone.
  std::vector<std::uint32_t> lengths = length_lists(20000, 512, 6)[0].lengths;
  for (std::size_t i = 0; i < lengths.size(); i += 4) lengths[i] = 512;
  const PlanOptions options{.ranks = 8, .cap = 512, .cost = {4608, 1}};
  const PlanStats stats = stats_of(make_plan(lengths, options), lengths);
  EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1);
  EXPECT_EQ(stats.dropped + stats.duplicated, 0U);
}

// Three samples a micro-batch: what is left free in each adds up.
TEST(Planner, MicroBatchesOfFewSamplesAreFilledToo) {
  for (const auto& [file, cap] :
       {std::pair{"squad11_seq384_histogram.csv", 512}, std::pair{"squad11_seq384_histogram.csv", 1024},
        std::pair{"wikipedia_bert_seq512_histogram.csv", 1024}}) {
    const Lengths lengths =
        lengths_from_histogram(std::string(LOCKSTEP_TEST_DATA "/lengths/") + file, 40'000);
    for (const int ranks : {8, 64}) {
      PlanOptions options{.ranks = ranks, .cost = {24576, 1}};
      options.cap = static_cast<std::uint64_t>(cap);
      const std::string what = fmt::format("{}, cap {}, {} ranks", file, cap, ranks);
      const Plan plan = make_plan(lengths.tokens, options);
      expect_valid(plan, lengths.tokens, what);
      const PlanStats stats = stats_of(plan, lengths.tokens);
      EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1)
          << what;
      EXPECT_LE(stats.imbalance_cost, stats.lower_bound_cost + 0.01) << what;
      EXPECT_LE(stats.step_mean_ratio, 1.5) << what;
    }
  }
}

// Micro-batches that best fit of all samples at once, longest first, takes: no steps, no randomness.
std::size_t best_fit(std::vector<std::uint32_t> lengths, std::uint64_t cap) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::multiset<std::uint64_t> rooms;
  for (const std::uint32_t length : lengths) {
    const auto room = rooms.lower_bound(length);
    const std::uint64_t left = (room == rooms.end() ? cap : *room) - length;
    if (room != rooms.end()) rooms.erase(room);
    rooms.insert(left);
  }
  return rooms.size();
}

// A fifth of Wikipedia's samples are cut at 512: at a cap little above, only short ones fit beside them.
TEST(Planner, CapsLittleAboveTheLongestSampleAreFilledAsFarAsLengthsAllow) {
  const Lengths lengths =
      lengths_from_histogram(LOCKSTEP_TEST_DATA "/lengths/wikipedia_bert_seq512_histogram.csv", 60'000);
  for (const std::uint64_t cap : {540U, 600U, 700U, 1000U}) {
    const auto least = static_cast<double>(best_fit(lengths.tokens, cap));
    for (const auto& [ranks, accumulate] : {std::pair{8, 8}, {8, 1}, {64, 1}, {512, 1}}) {
      const PlanOptions options{.ranks = ranks, .cap = cap, .accumulate = accumulate, .cost = {4608, 1}};
      const Plan plan = make_plan(lengths.tokens, options);
      const std::string what = fmt::format("cap {}, {} x {}", cap, ranks, accumulate);
      expect_valid(plan, lengths.tokens, what);
      const PlanStats stats = stats_of(plan, lengths.tokens);
      EXPECT_LE(static_cast<double>(stats.steps), 1.025 * least / (ranks * accumulate) + 1) << what;
      EXPECT_LE(stats.step_mean_ratio, 1.5) << what;
      // Some are alone in their micro-batch.
      EXPECT_LE(stats.imbalance_cost, 1.06) << what;
    }
  }
}

// A step of one micro-batch of equal rows cannot have the mean length of all samples.
TEST(Planner, PaddedStepsOfAHandfulOfMicroBatchesAreFull) {
  std::mt19937 engine(5);
  std::lognormal_distribution<double> log_normal(6, 1.2);
  std::vector<std::uint32_t> lengths(20'000);
  for (std::uint32_t& length : lengths) length = clamped(log_normal(engine), 16384);
  for (const auto& [ranks, accumulate] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {8, 1}, {1, 8}, {2, 8}}) {
    const PlanOptions options{
        .ranks = ranks, .cap = 16384, .accumulate = accumulate, .cost = {24576, 1}, .padded = true};
    const Plan plan = make_plan(lengths, options);
    const std::string what = fmt::format("{} x {}", ranks, accumulate);
    expect_valid(plan, lengths, what);
    const PlanStats stats = stats_of(plan, lengths);
    EXPECT_LE(static_cast<double>(stats.steps), 1.3 * static_cast<double>(stats.minimum_steps) + 1) << what;
    if (ranks * accumulate >= 4) {
      EXPECT_LE(stats.step_mean_ratio, 1.5) << what;
    }
  }
}

}  // namespace
}  // namespace lockstep::data
