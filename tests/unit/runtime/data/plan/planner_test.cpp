#include "runtime/data/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "common/error.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"
#include "tests/unit/runtime/data/plan/random_options.h"

namespace lockstep::data {
namespace {

using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TransformerCost, IsTheRatioOfTheOperations) {
  // 12 * 100^2 operations for a token in each layer, and 100 * 400 once; 100 (causal) or 200 for a pair.
  EXPECT_DOUBLE_EQ(transformer_cost({.width = 100, .attention = 1}).a, 1200);
  EXPECT_DOUBLE_EQ(transformer_cost({.width = 100, .causal = false, .attention = 1}).a, 600);
  EXPECT_DOUBLE_EQ(transformer_cost({.width = 100, .layers = 2, .vocabulary = 400, .attention = 1}).a, 1400);
  EXPECT_DOUBLE_EQ(transformer_cost({.width = 100, .attention = 2}).a, 600);
  EXPECT_EQ(transformer_cost({.width = 100}).b, 1);
  EXPECT_THAT([] { (void)transformer_cost({}); },
              ThrowsMessage<UsageError>(HasSubstr("the width of a transformer must be above 0, not 0")));
}

TEST(Planner, UsesEverySampleOnceUnderTheCapForAnyLengthsAndOptions) {
  RandomOptions random(7);
  for (unsigned seed = 0; seed < 150; ++seed) {
    const auto longest = static_cast<std::uint32_t>(random.pick(1, 3000));
    const int samples = random.one_in(4) ? random.pick(2, 3000) : random.pick(2, 300);
    for (const LengthList& list : length_lists(static_cast<std::size_t>(samples), longest, seed)) {
      const PlanOptions options = random.next(longest, 70);
      const std::string what =
          fmt::format("{}, list {} of up to {}: {}", list.name, seed, longest, describe(options));
      const Plan plan = make_plan(list.lengths, options, "data");
      expect_valid(plan, list.lengths, what);
      EXPECT_NO_THROW(check_plan(plan, {list.lengths, "data"})) << what;
      const PlanStats stats = stats_of(plan, list.lengths);
      EXPECT_EQ(stats.duplicated, 0U) << what;
      const auto skipped = std::ranges::count_if(list.lengths, [&](std::uint32_t length) {
        return options.too_long == TooLong::skip && length > options.cap;
      });
      EXPECT_EQ(stats.dropped, static_cast<std::size_t>(skipped)) << what;
      EXPECT_GE(stats.imbalance_cost, stats.lower_bound_cost - 1e-9) << what;
      EXPECT_GE(stats.lower_bound_cost, 1.0) << what;
      EXPECT_LE(stats.fill, 1.0) << what;
      EXPECT_EQ(nested(plan), nested(make_plan(list.lengths, options, "data")))
          << what << ": the second plan differs";
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Planner, AnotherEpochOrSeedGivesAnotherOrder) {
  const std::vector<std::uint32_t> lengths(500, 10);
  const PlanOptions options{.ranks = 2, .cap = 100};
  PlanOptions epoch = options;
  epoch.epoch = 1;
  PlanOptions seed = options;
  seed.seed = 1;
  const Nested plan = nested(make_plan(lengths, options));
  EXPECT_NE(plan, nested(make_plan(lengths, epoch)));
  EXPECT_NE(plan, nested(make_plan(lengths, seed)));
  EXPECT_NE(nested(make_plan(lengths, epoch)), nested(make_plan(lengths, seed)));
}

TEST(Planner, MoreRanksThanSamplesLeavesRanksWithoutMicroBatches) {
  const std::vector<std::uint32_t> lengths = {5, 6};
  const Plan plan = make_plan(lengths, {.ranks = 4, .cap = 10});
  ASSERT_EQ(plan.steps(), 1U);
  EXPECT_EQ(plan.sample_ids().size(), 2U);
  int without = 0;
  for (int rank = 0; rank < 4; ++rank) without += plan.micro_batches(0, rank) == 0 ? 1 : 0;
  EXPECT_EQ(without, 2);
  const Plan equal = make_plan(lengths, {.ranks = 4, .cap = 10, .equal_micro_batches = true});
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(equal.micro_batches(0, rank), 1U);
}

TEST(Planner, AFasterRankGetsMoreCost) {
  const std::vector<std::uint32_t> lengths = length_lists(20000, 300, 8)[0].lengths;
  const PlanOptions options{
      .ranks = 4, .cap = 10000, .accumulate = 2, .cost = {1000, 1}, .speeds = {1, 2, 1, 0.5}};
  const Plan plan = make_plan(lengths, options);
  expect_valid(plan, lengths, "with speeds");
  for (std::size_t step = 0; step + 1 < plan.steps(); ++step) {
    std::vector<double> times;
    for (int rank = 0; rank < 4; ++rank) {
      double cost = 0;
      for (std::size_t m = 0; m < plan.micro_batches(step, rank); ++m) {
        for (const SampleId id : plan.micro_batch(step, rank, m)) cost += options.cost.of(lengths[id]);
      }
      times.push_back(cost / options.speeds[static_cast<std::size_t>(rank)]);
    }
    for (const double time : times) EXPECT_NEAR(time / times[0], 1, 0.005) << "step " << step;
  }
}

TEST(Planner, RefusesInvalidSpeeds) {
  const std::vector<std::uint32_t> lengths = {10};
  const auto plan = [&](std::vector<double> speeds) {
    make_plan(lengths, {.ranks = 2, .cap = 10, .speeds = std::move(speeds)});
  };
  EXPECT_THAT([&] { plan({1}); }, ThrowsMessage<UsageError>(HasSubstr("1 speeds for 2 ranks")));
  EXPECT_THAT([&] { plan({1, 0}); }, ThrowsMessage<UsageError>(HasSubstr("rank 1")));
}

TEST(Planner, RanksTakeTurnsForTheLongestSample) {
  const std::vector<std::uint32_t> lengths = length_lists(5000, 1000, 5)[1].lengths;
  const Plan plan = make_plan(lengths, {.ranks = 4, .cap = 3000, .cost = {1000, 1}});
  std::vector<int> times(4);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    std::size_t longest_at = 0;
    std::uint32_t longest = 0;
    for (int rank = 0; rank < 4; ++rank) {
      for (const SampleId id : plan.micro_batch(step, rank, 0)) {
        if (lengths[id] > longest) longest_at = static_cast<std::size_t>(rank);
        longest = std::max(longest, lengths[id]);
      }
    }
    ++times[longest_at];
  }
  EXPECT_THAT(times, Each(Ge(static_cast<int>(plan.steps() / 8))));
}

TEST(Planner, LeavesOutEmptySamplesAndKeepsTheNumbersOfTheOthers) {
  const std::vector<std::uint32_t> lengths = {0, 10, 0, 20, 30, 0};
  for (const TooLong too_long : {TooLong::refuse, TooLong::truncate, TooLong::skip, TooLong::split}) {
    const std::uint64_t cap = too_long == TooLong::refuse ? 35 : 25;
    const Plan plan = make_plan(lengths, {.ranks = 2, .cap = cap, .too_long = too_long});
    std::set<SampleId> used;
    for (const SampleId id : plan.sample_ids()) used.insert(sample_of(id));
    const std::set<SampleId> expected =
        too_long == TooLong::skip ? std::set<SampleId>{1, 3} : std::set<SampleId>{1, 3, 4};
    EXPECT_EQ(used, expected) << name_of(too_long);
    EXPECT_EQ(plan.samples(), lengths.size());
  }
}

TEST(Planner, RefusesInvalidOptions) {
  const std::vector<std::uint32_t> lengths = {10};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<PlanOptions, const char*>> cases = {
      {{.ranks = 0, .cap = 10}, "ranks must be at least 1"},
      {{.cap = 0}, "cap must be at least 1"},
      {{.cap = std::uint64_t{1} << 32U}, "must be below 2^32"},
      {{.cap = 10, .accumulate = 0}, "accumulate must be at least 1"},
      {{.ranks = 2147483647, .cap = 10}, "ranks x accumulate must be at most 1048576"},
      {{.cap = 10, .step_tokens = std::uint64_t{1} << 63U}, "step_tokens"},
      {{.cap = 10, .step_stretch = nan}, "stretch"},
      {{.cap = 10, .step_stretch = infinity}, "stretch"},
      {{.cap = 10, .step_stretch = 0.99}, "at least 1, not 0.99"},
      {{.cap = 10, .cost = {nan, 1}}, "two finite numbers"},
      {{.cap = 10, .cost = {1, -1}}, "neither negative"},
      {{.cap = 10, .cost = {0, 0}}, "not both 0"},
      {{.cap = 10, .cost = {1e308, 1e308}}, "too large"},
      {{.cap = 10, .pad_multiple = 0}, "multiple"}};
  for (const auto& [options, why] : cases) {
    const auto plan = [&, &wrong = options] { make_plan(lengths, wrong); };
    EXPECT_THAT(plan, ThrowsMessage<UsageError>(HasSubstr(why)));
  }
}

TEST(Planner, PlansTheSameBlockByBlockAsAtOnce) {
  constexpr std::size_t block_samples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
  for (const std::size_t samples :
       {block_samples - 1, block_samples, block_samples + 1, 2 * block_samples + 20'000}) {
    const LengthList list = length_lists(samples, 3000, 1)[1];
    const LengthsInMemory source(list.lengths, "data");
    const PlanOptions options{.ranks = 8, .cap = 16384, .cost = {24576, 1}};
    const std::string what = fmt::format("{} samples", samples);
    EpochPlanner planner(source, options);
    Plan joined(options, samples, "data");
    PlanState state = planner.state();
    std::size_t blocks = 0;
    for (PlannedBlock block; planner.next_block(block); ++blocks) {
      ASSERT_EQ(block.start, state) << what << ", block " << blocks;
      ASSERT_EQ(block.after.size(), block.plan.steps()) << what << ", block " << blocks;
      state = state_after(block, block.plan.steps());
      EXPECT_EQ(state, planner.state()) << what << ", block " << blocks;
      joined.append(block.plan);
    }
    EXPECT_EQ(blocks, (samples + block_samples - 1) / block_samples) << what;
    EXPECT_EQ(state.steps, joined.steps()) << what;
    const Plan at_once = make_plan(list.lengths, options, "data");
    EXPECT_EQ(joined.steps_fingerprint(), at_once.steps_fingerprint()) << what;
    EXPECT_NO_THROW(check_plan(joined, {list.lengths, "data"})) << what;
    // The end of a block does not shorten a step: its remaining samples join those of the next block.
    const PlanStats stats = stats_of(joined, list.lengths);
    EXPECT_GT(stats.step_tokens_mean, 0.99) << what;
    for (std::size_t step = 0; step + 1 < joined.steps(); ++step) {
      std::uint64_t tokens = 0;
      for (const SampleId id : joined.step_samples(step)) tokens += list.lengths[id];
      ASSERT_GT(tokens, step_budget(options) - 3000) << what << ", step " << step;
    }
  }
}

TEST(Planner, TheFingerprintOfStepsDiffersIfStepsRanksOrMicroBatchesDiffer) {
  const PlanOptions options{.ranks = 2, .cap = 10};
  const std::vector<Nested> different = {
      {{{{0, 1}}, {{2}}}},   {{{{1, 0}}, {{2}}}},     {{{{0}, {1}}, {{2}}}},        {{{{0, 1}, {2}}, {}}},
      {{{}, {{0, 1}, {2}}}}, {{{{0, 1}}, {{2}, {}}}}, {{{{0, 1}}, {}}, {{{2}}, {}}}};
  std::set<std::string> names;
  for (const Nested& steps : different) names.insert(plan_of(options, 3, steps).steps_fingerprint());
  EXPECT_EQ(names.size(), different.size());
  EXPECT_EQ(plan_of(options, 3, different[3]).steps_fingerprint(),
            plan_of(options, 3, different[3]).steps_fingerprint());
}

}  // namespace
}  // namespace lockstep::data
