#include "runtime/data/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include "common/error.h"
#include "runtime/data/plan/epoch_planner.h"
#include "runtime/data/plan/lengths.h"
#include "runtime/data/plan/plan_stats.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/plan_rules.h"

namespace lockstep::data {
namespace {

using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::ThrowsMessage;

std::vector<SampleId> flat(const Plan& plan) {
  std::vector<SampleId> ids;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      for (int m = 0; m < plan.options().accumulate; ++m) {
        ids.push_back(~SampleId{0});
        for (const SampleId id : plan.micro_batch(step, rank, m)) ids.push_back(id);
      }
    }
  }
  return ids;
}

TEST(Planner, EverySampleOnceUnderTheCapWhateverTheLengthsAndOptions) {
  std::mt19937 engine(7);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine);
  };
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto longest = static_cast<std::uint32_t>(pick(1, 3000));
    PlanOptions options;
    options.ranks = pick(1, 9);
    options.accumulate = pick(1, 4);
    options.cap = longest + static_cast<std::uint64_t>(pick(0, 1) * pick(0, 20000));
    options.cost = {static_cast<double>(pick(0, 5000)), static_cast<double>(pick(1, 3))};
    options.seed = seed;
    options.randomness = pick(1, 40) / 10.0;
    options.padded = pick(0, 3) == 0;
    if (pick(0, 5) == 0) options.order = Order::sequential;
    for (const LengthList& list : length_lists(static_cast<std::size_t>(pick(2, 3000)), longest, seed)) {
      const std::string what =
          fmt::format("{} of up to {}, {} x {}, cap {}, {}, seed {}", list.name, longest, options.ranks,
                      options.accumulate, options.cap, options.padded ? "padded" : "packed", seed);
      const Plan plan = make_plan(list.lengths, options);
      expect_valid(plan, list.lengths, what);
      const PlanStats stats = stats_of(plan, list.lengths);
      EXPECT_EQ(stats.dropped + stats.duplicated, 0U) << what;
      EXPECT_GE(stats.steps, stats.minimum_steps) << what;
      EXPECT_GE(stats.imbalance_cost, stats.lower_bound_cost - 1e-9) << what;
      EXPECT_GE(stats.lower_bound_cost, 1.0) << what;
      EXPECT_LE(stats.fill, 1.0) << what;
    }
  }
}

TEST(Planner, TheSameInputsGiveTheSamePlan) {
  for (const LengthList& list : length_lists(2000, 1000, 1)) {
    const PlanOptions options{.ranks = 3, .cap = 4096, .accumulate = 2, .cost = {100, 1}};
    EXPECT_EQ(flat(make_plan(list.lengths, options)), flat(make_plan(list.lengths, options))) << list.name;
  }
}

TEST(Planner, AnotherEpochOrSeedIsAnotherOrder) {
  const std::vector<std::uint32_t> lengths(500, 10);
  const PlanOptions options{.ranks = 2, .cap = 100};
  PlanOptions epoch = options;
  epoch.epoch = 1;
  PlanOptions seed = options;
  seed.seed = 1;
  const auto plan = flat(make_plan(lengths, options));
  EXPECT_NE(plan, flat(make_plan(lengths, epoch)));
  EXPECT_NE(plan, flat(make_plan(lengths, seed)));
  EXPECT_NE(flat(make_plan(lengths, epoch)), flat(make_plan(lengths, seed)));
}

TEST(Planner, SequentialOrderKeepsNeighboursInTheSameStep) {
  const std::vector<std::uint32_t> lengths(100, 10);
  const Plan plan = make_plan(lengths, {.ranks = 2, .cap = 50, .order = Order::sequential});
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    std::set<SampleId> ids;
    for (int rank = 0; rank < 2; ++rank) {
      for (const SampleId id : plan.micro_batch(step, rank, 0)) ids.insert(id);
    }
    ASSERT_FALSE(ids.empty());
    EXPECT_EQ(*ids.rbegin() - *ids.begin() + 1, ids.size()) << "step " << step;
  }
}

TEST(Planner, MoreRanksThanSamplesLeavesEmptyMicroBatches) {
  const std::vector<std::uint32_t> lengths = {5, 6};
  const Plan plan = make_plan(lengths, {.ranks = 4, .cap = 10});
  ASSERT_EQ(plan.steps(), 1U);
  int empty = 0;
  for (int rank = 0; rank < 4; ++rank) empty += plan.micro_batch(0, rank, 0).empty() ? 1 : 0;
  EXPECT_EQ(empty, 2);
}

TEST(Planner, StepsAreCloseToTheMinimumWhereSamplesAreSmall) {
  for (const LengthList& list : length_lists(20000, 1000, 3)) {
    for (const int accumulate : {1, 3}) {
      const PlanOptions options{.ranks = 8, .cap = 10000, .accumulate = accumulate, .cost = {24576, 1}};
      const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
      EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1)
          << list.name;
    }
  }
}

TEST(Planner, RanksCostTheSameWhereSamplesAreSmall) {
  for (const LengthList& list : length_lists(20000, 1000, 4)) {
    if (list.name == "one sample" || list.name == "all equal") continue;  // whole samples cannot be halved
    const PlanOptions options{.ranks = 8, .cap = 10000, .cost = {3000, 1}};
    const PlanStats stats = stats_of(make_plan(list.lengths, options), list.lengths);
    EXPECT_LE(stats.imbalance_cost, 1.005) << list.name;
  }
}

TEST(Planner, StaysWithinTheRandomnessBudget) {
  for (const double bound : {0.5, 1.0, 1.5}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      const auto lists = length_lists(30000, 1000, seed);
      for (const std::size_t list : {0U, 1U, 2U}) {
        const PlanOptions options{
            .ranks = 4, .cap = 8000, .cost = {3000, 1}, .seed = seed, .randomness = bound};
        const PlanStats stats = stats_of(make_plan(lists[list].lengths, options), lists[list].lengths);
        EXPECT_LE(stats.step_mean_ratio, bound) << lists[list].name << ", seed " << seed;
      }
    }
  }
}

TEST(Planner, OutliersOfALongEpochStayWithinTheBudgetToo) {
  const Lengths few =
      lengths_from_csv(LOCKSTEP_TEST_DATA "/lengths/azure_llm_conv_2023_lengths.csv", "length");
  std::mt19937 engine(1);
  std::vector<std::uint32_t> lengths(600000);
  for (std::uint32_t& length : lengths) length = few.tokens[engine() % few.tokens.size()];
  for (const int ranks : {8, 64, 256}) {
    const PlanOptions options{.ranks = ranks, .cap = 16384, .cost = {24576, 1}};
    const PlanStats stats = stats_of(make_plan(lengths, options), lengths);
    EXPECT_LE(stats.step_mean_ratio, 1.5) << ranks << " ranks";
    EXPECT_LE(stats.imbalance_cost, 1.0025) << ranks << " ranks";
    EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1);
  }
}

// Samples as long as the cap cost more than a rank's share, and there is no end to them.
TEST(Planner, OutliersThatWaitMakeNoStepOfTheirOwn) {
  struct Case {
    std::size_t samples;
    int ranks;
    double ratio;
    double imbalance;
  };
  // Of an epoch of 40 steps, what waits in the end is too great a part.
  for (const Case& c : {Case{600'000, 64, 1.5, 1.06}, Case{300'000, 8, 1.5, 1.06}, Case{50'000, 8, 1.5, 1.06},
                        Case{50'000, 64, 2, 1.15}}) {
    std::mt19937 engine(5);
    std::lognormal_distribution<double> log_normal(6, 1.2);
    std::vector<std::uint32_t> lengths(c.samples);
    for (std::uint32_t& length : lengths) length = clamped(log_normal(engine), 16384);
    const PlanOptions options{.ranks = c.ranks, .cap = 16384, .cost = {24576, 1}};
    const PlanStats stats = stats_of(make_plan(lengths, options), lengths);
    const std::string what = fmt::format("{} samples, {} ranks", c.samples, c.ranks);
    EXPECT_LE(stats.step_mean_ratio, c.ratio) << what;
    EXPECT_LE(stats.imbalance_cost, c.imbalance) << what;
    EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1) << what;
    EXPECT_EQ(stats.dropped + stats.duplicated, 0U) << what;
  }
}

TEST(Planner, TheSmallestCapsAndUnequalSpeedsAreNoTrap) {
  std::mt19937 engine(3);
  for (std::uint64_t cap = 1; cap <= 8; ++cap) {
    for (const std::vector<double>& speeds : {std::vector<double>{1, 0.9}, {1, 0.1}, {2, 1, 0.5}}) {
      std::vector<std::uint32_t> lengths(100);
      for (std::uint32_t& length : lengths) length = 1 + static_cast<std::uint32_t>(engine() % cap);
      const PlanOptions options{.ranks = static_cast<int>(speeds.size()), .cap = cap, .speeds = speeds};
      expect_valid(make_plan(lengths, options), lengths, fmt::format("cap {}", cap));
    }
  }
}

TEST(Planner, TheTailIsFilledDroppedOrRepeatedAsAsked) {
  for (const bool padded : {false, true}) {
    // Padded steps share their samples, so that there is one for each micro-batch, unless a row fills it.
    const std::vector<std::uint32_t> lengths =
        padded ? std::vector<std::uint32_t>(83, 95) : std::vector<std::uint32_t>(85, 10);
    PlanOptions options{.ranks = 4, .cap = 100, .accumulate = 2, .padded = padded, .pad_multiple = 1};
    const auto empty = [](const Plan& plan) {
      int count = 0;
      for (int rank = 0; rank < 4; ++rank) {
        for (int m = 0; m < 2; ++m) count += plan.micro_batch(plan.steps() - 1, rank, m).empty() ? 1 : 0;
      }
      return count;
    };
    const Plan filled = make_plan(lengths, options);
    EXPECT_GT(empty(filled), 0);
    expect_valid(filled, lengths, "filled");
    options.tail = Tail::drop;
    const Plan dropped = make_plan(lengths, options);
    EXPECT_EQ(dropped.steps() + 1, filled.steps());
    EXPECT_EQ(empty(dropped), 0);
    EXPECT_GT(stats_of(dropped, lengths).dropped, 0U);
    options.tail = Tail::repeat;
    const Plan repeated = make_plan(lengths, options);
    EXPECT_EQ(repeated.steps(), filled.steps());
    EXPECT_EQ(empty(repeated), 0) << padded;
    const PlanStats stats = stats_of(repeated, lengths);
    EXPECT_EQ(stats.dropped, 0U);
    EXPECT_GT(stats.duplicated, 0U);
  }
}

TEST(Planner, OtherTailsKeepTheCapAndTouchTheLastStepOnly) {
  std::mt19937 engine(11);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine);
  };
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto longest = static_cast<std::uint32_t>(pick(1, 2000));
    PlanOptions options{.ranks = pick(1, 9), .accumulate = pick(1, 4), .seed = seed};
    options.cap = longest + static_cast<std::uint64_t>(pick(0, 1) * pick(0, 4000));
    options.padded = pick(0, 3) == 0;
    for (const LengthList& list : length_lists(static_cast<std::size_t>(pick(2, 600)), longest, seed)) {
      const std::string what =
          fmt::format("{} of up to {}, {} x {}, cap {}, {}, seed {}", list.name, longest, options.ranks,
                      options.accumulate, options.cap, options.padded ? "padded" : "packed", seed);
      const std::size_t filled = make_plan(list.lengths, options).steps();
      options.tail = Tail::repeat;
      const Plan repeated = make_plan(list.lengths, options);
      EXPECT_EQ(repeated.steps(), filled) << what;
      EXPECT_THAT(uses_under_the_cap(repeated, list.lengths, what), Each(Ge(1))) << what;
      std::vector<int> before_the_last(list.lengths.size());
      const std::size_t whole = repeated.steps() == 0 ? 0 : repeated.steps() - 1;
      for (std::size_t step = 0; step < whole; ++step) {
        for (int rank = 0; rank < options.ranks; ++rank) {
          for (int m = 0; m < options.accumulate; ++m) {
            for (const SampleId id : repeated.micro_batch(step, rank, m)) ++before_the_last[id];
          }
        }
      }
      EXPECT_THAT(before_the_last, Each(Le(1))) << what;
      options.tail = Tail::drop;
      const Plan dropped = make_plan(list.lengths, options);
      EXPECT_GE(dropped.steps() + 1, filled) << what;
      EXPECT_THAT(uses_under_the_cap(dropped, list.lengths, what), Each(Le(1))) << what;
      options.tail = Tail::fill;
    }
  }
}

TEST(Planner, AFasterRankGetsMore) {
  const std::vector<std::uint32_t> lengths = length_lists(20000, 300, 8)[0].lengths;
  const PlanOptions options{
      .ranks = 4, .cap = 10000, .accumulate = 2, .cost = {1000, 1}, .speeds = {1, 2, 1, 0.5}};
  const Plan plan = make_plan(lengths, options);
  expect_valid(plan, lengths, "with speeds");
  for (std::size_t step = 0; step + 1 < plan.steps(); ++step) {
    std::vector<double> times;
    for (int rank = 0; rank < 4; ++rank) {
      double cost = 0;
      for (int m = 0; m < 2; ++m) {
        for (const SampleId id : plan.micro_batch(step, rank, m)) cost += options.cost.of(lengths[id]);
      }
      times.push_back(cost / options.speeds[static_cast<std::size_t>(rank)]);
    }
    EXPECT_NEAR(times[1] / times[0], 1, 0.02);
    EXPECT_NEAR(times[3] / times[0], 1, 0.02);
  }
}

TEST(Planner, RefusesSpeedsThatMakeNoSense) {
  const std::vector<std::uint32_t> lengths = {10};
  const auto plan = [&](std::vector<double> speeds) {
    make_plan(lengths, {.ranks = 2, .cap = 10, .speeds = std::move(speeds)});
  };
  EXPECT_THAT([&] { plan({1}); }, ThrowsMessage<UsageError>(HasSubstr("1 speeds for 2 ranks")));
  EXPECT_THAT([&] { plan({1, 0}); }, ThrowsMessage<UsageError>(HasSubstr("rank 1")));
}

TEST(Planner, OutliersMeetInOneStep) {
  // Eight samples cost more than a rank's whole share; alone in a step each makes three ranks wait.
  std::vector<std::uint32_t> lengths(16000, 100);
  for (std::size_t i = 0; i < 8; ++i) lengths[i * 2000] = 9000;
  const PlanOptions options{.ranks = 4, .cap = 10000, .cost = {1000, 1}, .randomness = 100};
  const Plan plan = make_plan(lengths, options);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    int outliers = 0;
    for (int rank = 0; rank < 4; ++rank) {
      for (const SampleId id : plan.micro_batch(step, rank, 0)) outliers += lengths[id] == 9000 ? 1 : 0;
    }
    EXPECT_TRUE(outliers == 0 || outliers == 4) << "step " << step << " has " << outliers;
  }
}

TEST(Planner, PaddedMicroBatchesHoldSimilarLengths) {
  const auto lists = length_lists(20000, 1000, 5);
  const PlanOptions options{.ranks = 4, .cap = 16000, .accumulate = 4, .cost = {1000, 1}, .padded = true};
  const PlanStats stats = stats_of(make_plan(lists[0].lengths, options), lists[0].lengths);
  EXPECT_LE(stats.padding, 0.10);  // random rows of uniform lengths would be half padding
  EXPECT_GE(stats.fill, 0.80);
}

TEST(Planner, RefusesAnOverLongSampleByNumberLengthAndCap) {
  const std::vector<std::uint32_t> lengths = {10, 20, 4097, 30};
  EXPECT_THAT(
      [&] { make_plan(lengths, {.ranks = 2, .cap = 4096}); },
      ThrowsMessage<Error>(testing::AllOf(HasSubstr("sample 2 "), HasSubstr("4097"), HasSubstr("4096"))));
}

TEST(Planner, RefusesAnEmptySample) {
  const std::vector<std::uint32_t> lengths = {10, 0};
  EXPECT_THAT([&] { make_plan(lengths, {.cap = 4096}); },
              ThrowsMessage<Error>(HasSubstr("sample 1 is empty")));
}

TEST(Planner, RefusesOptionsThatMakeNoSense) {
  const std::vector<std::uint32_t> lengths = {10};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(make_plan(lengths, {.ranks = 0, .cap = 10}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 0}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .accumulate = 0}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .cost = {nan, 1}}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .cost = {1, -1}}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .cost = {0, 0}}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .cost = {1e308, 1e308}}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.ranks = 2147483647, .cap = 10}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .randomness = nan}), UsageError);
  EXPECT_THROW(make_plan(lengths, {.cap = 10, .randomness = 0}), UsageError);
}

// The numbers that the planner is to reach on requests of a real service (tests/data/lengths).
class ConversationLengths : public testing::TestWithParam<std::pair<int, double>> {};

TEST_P(ConversationLengths, AreBalanced) {
  const Lengths lengths =
      lengths_from_csv(LOCKSTEP_TEST_DATA "/lengths/azure_llm_conv_2023_lengths.csv", "length");
  const auto [ranks, most] = GetParam();
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const PlanOptions options{.ranks = ranks, .cap = 16384, .cost = {24576, 1}, .seed = seed};
    const PlanStats stats = stats_of(make_plan(lengths.tokens, options), lengths.tokens);
    EXPECT_LE(stats.imbalance_cost, most) << "seed " << seed;
    EXPECT_LE(stats.step_mean_ratio, 1.5) << "seed " << seed;
    EXPECT_LE(static_cast<double>(stats.steps), 1.02 * static_cast<double>(stats.minimum_steps) + 1);
    EXPECT_EQ(stats.dropped + stats.duplicated, 0U);
  }
}

TEST(Planner, StepsAreTheSameOnAnyNumberOfThreads) {
  std::mt19937 engine(11);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine);
  };
  for (unsigned seed = 0; seed < 8; ++seed) {
    for (const LengthList& list : length_lists(20'000, 3000, seed)) {
      const LengthsInMemory source(list.lengths, "data");
      PlanOptions options{.ranks = pick(2, 9), .accumulate = pick(1, 3), .seed = seed};
      // Caps of few samples and of many.
      options.cap = static_cast<std::uint64_t>(3000 + pick(0, 1) * pick(0, 20'000));
      options.cost = {static_cast<double>(pick(0, 5000)), static_cast<double>(pick(1, 3))};
      options.padded = seed % 4 == 3;
      if (seed % 4 == 2) options.speeds = std::vector<double>(static_cast<std::size_t>(options.ranks), 2);
      if (seed % 4 == 2) options.speeds[0] = 1;
      if (seed == 5) options.order = Order::sequential;
      std::vector<std::vector<SampleId>> steps;
      for (const int threads : {1, 2, 5}) {
        EpochPlanner planner(source, options);
        planner.use_threads(threads);
        Plan plan = planner.empty_plan();
        while (planner.append_block(plan)) {
        }
        steps.push_back(flat(plan));
      }
      EXPECT_EQ(steps[0], steps[1]) << list.name << ", seed " << seed;
      EXPECT_EQ(steps[0], steps[2]) << list.name << ", seed " << seed;
    }
  }
}

// Neighbours in length from several steps share a micro-batch, as far as steps stay random.
TEST(Planner, PaddingFallsWithinTheRandomnessBudget) {
  const auto stats_with = [](const Lengths& lengths, int ranks, double randomness) {
    PlanOptions options{
        .ranks = ranks, .cap = 16384, .cost = {24576, 1}, .randomness = randomness, .padded = true};
    return stats_of(make_plan(lengths.tokens, options), lengths.tokens);
  };
  const std::string folder = LOCKSTEP_TEST_DATA "/lengths/";
  const Lengths azure = lengths_from_csv(folder + "azure_llm_conv_2023_lengths.csv", "length");
  const Lengths wikipedia = lengths_from_histogram(folder + "wikipedia_bert_seq512_histogram.csv", 100'000);
  const Lengths squad = lengths_from_histogram(folder + "squad11_seq384_histogram.csv", 100'000);
  struct Case {
    const Lengths& lengths;
    int ranks;
    double padding;
  };
  for (const Case& c : {Case{azure, 8, 0.02}, Case{azure, 64, 0.01}, Case{wikipedia, 8, 0.115},
                        Case{wikipedia, 64, 0.02}, Case{squad, 8, 0.085}, Case{squad, 64, 0.03}}) {
    const PlanStats stats = stats_with(c.lengths, c.ranks, 1.5);
    EXPECT_LE(stats.padding, c.padding) << c.ranks << " ranks";
    EXPECT_LE(stats.step_mean_ratio, 1.5) << c.ranks << " ranks";
    EXPECT_EQ(stats.dropped + stats.duplicated, 0U);
  }
  const PlanStats more = stats_with(wikipedia, 8, 4);
  EXPECT_LE(more.padding, 0.05) << "who gives up randomness saves padding";
  EXPECT_LE(more.step_mean_ratio, 4);
}

INSTANTIATE_TEST_SUITE_P(Planner, ConversationLengths,
                         testing::Values(std::pair{8, 1.0025}, std::pair{64, 1.015}));

}  // namespace
}  // namespace lockstep::data
