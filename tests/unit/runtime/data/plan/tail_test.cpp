// Tests of an epoch's last step with fewer samples than ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"
#include "tests/unit/runtime/data/plan/order/samples_of_block.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"
#include "tests/unit/runtime/data/plan/random_options.h"

namespace lockstep::data {
namespace {

// 83 samples of 95 tokens, one in each micro-batch: 20 steps of 4 samples, and a rest of 3.
Plan plan_with(Tail tail, bool padded, std::size_t samples = 83) {
  const std::vector<std::uint32_t> lengths(samples, 95);
  return make_plan(lengths, {.ranks = 4,
                             .cap = 100,
                             .step_tokens = 400,
                             .step_stretch = 1,
                             .padded = padded,
                             .pad_multiple = 1,
                             .tail = tail});
}

std::size_t ranks_without(const Plan& plan, std::size_t step) {
  std::size_t count = 0;
  for (int rank = 0; rank < plan.options().ranks; ++rank)
    count += plan.micro_batches(step, rank) == 0 ? 1 : 0;
  return count;
}

TEST(Tail, IsFilledDroppedOrRepeated) {
  const std::vector<std::uint32_t> lengths(83, 95);
  for (const bool padded : {false, true}) {
    const Plan filled = plan_with(Tail::fill, padded);
    EXPECT_EQ(filled.steps(), 21U);
    EXPECT_EQ(ranks_without(filled, 20), 1U);
    expect_valid(filled, lengths, "filled");

    const Plan dropped = plan_with(Tail::drop, padded);
    EXPECT_EQ(dropped.steps(), 20U);
    EXPECT_EQ(ranks_without(dropped, 19), 0U);
    EXPECT_EQ(stats_of(dropped, lengths).dropped, 3U);

    const Plan repeated = plan_with(Tail::repeat, padded);
    EXPECT_EQ(repeated.steps(), 21U);
    EXPECT_EQ(ranks_without(repeated, 20), 0U);
    EXPECT_EQ(stats_of(repeated, lengths).dropped, 0U);
    EXPECT_EQ(stats_of(repeated, lengths).duplicated, 1U);
  }
}

TEST(Tail, DoesNotChangeALastStepWithASampleForEachRank) {
  const Nested filled = nested(plan_with(Tail::fill, false, 84));
  EXPECT_EQ(filled.size(), 21U);
  EXPECT_EQ(filled, nested(plan_with(Tail::drop, false, 84)));
  EXPECT_EQ(filled, nested(plan_with(Tail::repeat, false, 84)));
}

TEST(Tail, RepeatsOrDropsAllSamplesOfAnEpochWithFewerThanRanks) {
  const std::vector<std::uint32_t> lengths = {7, 8, 9};
  PlanOptions options{.ranks = 10, .cap = 10, .tail = Tail::repeat};
  const Plan repeated = make_plan(lengths, options);
  ASSERT_EQ(repeated.steps(), 1U);
  EXPECT_EQ(ranks_without(repeated, 0), 0U);
  EXPECT_EQ(repeated.sample_ids().size(), 10U);
  for (const auto& [id, times] : uses_of(repeated, 0, 1)) EXPECT_GE(times, 3) << "sample " << id;
  options.tail = Tail::drop;
  EXPECT_EQ(make_plan(lengths, options).steps(), 0U);
}

TEST(Tail, DropAndRepeatChangeOnlyTheLastStep) {
  RandomOptions random(11);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto longest = static_cast<std::uint32_t>(random.pick(1, 2000));
    for (const LengthList& list :
         length_lists(static_cast<std::size_t>(random.pick(2, 400)), longest, seed)) {
      PlanOptions options = random.next(longest, 70);
      const std::string what =
          fmt::format("{}, list {} of up to {}: {}", list.name, seed, longest, describe(options));
      const Plan filled = make_plan(list.lengths, options, "data");
      const std::size_t whole = filled.steps() == 0 ? 0 : filled.steps() - 1;
      const auto ranks = static_cast<std::size_t>(options.ranks);
      const bool short_tail = filled.steps() > 0 && filled.step_samples(whole).size() < ranks;

      options.tail = Tail::repeat;
      const Plan repeated = make_plan(list.lengths, options, "data");
      ASSERT_EQ(repeated.steps(), filled.steps()) << what;
      expect_steps(repeated, list.lengths, what);
      EXPECT_NO_THROW(check_plan(repeated, {list.lengths, "data"})) << what;
      Nested repeated_steps = nested(repeated);
      Nested filled_steps = nested(filled);
      if (short_tail) {
        EXPECT_EQ(repeated.step_samples(whole).size(), ranks) << what;
        const auto uses = uses_of(repeated, whole, whole + 1);
        for (const SampleId id : filled.step_samples(whole)) EXPECT_TRUE(uses.contains(id)) << what;
        repeated_steps.pop_back();
        filled_steps.pop_back();
      }
      EXPECT_EQ(repeated_steps, filled_steps) << what;

      options.tail = Tail::drop;
      const Plan dropped = make_plan(list.lengths, options, "data");
      EXPECT_NO_THROW(check_plan(dropped, {list.lengths, "data"})) << what;
      EXPECT_EQ(nested(dropped), filled_steps) << what;
      if (HasFatalFailure()) return;
    }
  }
}

// The last block has one shard, and all its samples are skipped.
TEST(Tail, RepeatsIfEverySampleOfTheLastBlockIsSkipped) {
  constexpr std::size_t block = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
  const std::size_t samples = block + EpochOrder::kShardSamples;
  std::vector<std::uint32_t> lengths(samples, 100);
  const EpochOrder order(samples, Order::shuffled, 0, 0);
  for (const SampleId id : samples_of_block(order, 1)) lengths[id] = 101;
  // 262,144 samples in steps of 7, one for each rank, leave 5.
  const PlanOptions options{.ranks = 7,
                            .cap = 100,
                            .step_tokens = 700,
                            .step_stretch = 1,
                            .too_long = TooLong::skip,
                            .tail = Tail::repeat};
  const Plan plan = make_plan(lengths, options, "data");
  ASSERT_EQ(plan.steps(), block / 7 + 1);
  EXPECT_EQ(ranks_without(plan, plan.steps() - 1), 0U);
  EXPECT_NO_THROW(check_plan(plan, {lengths, "data"}));
}

// Three samples reach 1.5 x the budget of their step; all later samples are skipped.
TEST(Tail, IsRecognisedIfOnlySkippedSamplesFollow) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::uint32_t> lengths(60, 101);
    lengths[0] = lengths[2] = 100;
    lengths[1] = 20;
    PlanOptions options{.ranks = 4,
                        .cap = 100,
                        .step_tokens = 146,
                        .step_stretch = 1.5,
                        .cost = {1, 1},
                        .seed = seed,
                        .too_long = TooLong::skip,
                        .tail = Tail::drop};
    EXPECT_EQ(make_plan(lengths, options).steps(), 0U) << "seed " << seed;
    options.tail = Tail::repeat;
    EXPECT_EQ(ranks_without(make_plan(lengths, options), 0), 0U) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::data
