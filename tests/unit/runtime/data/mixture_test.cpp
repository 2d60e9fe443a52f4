#include "runtime/data/plan/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "common/error.h"
#include "runtime/data/plan/mixture_planner.h"
#include "runtime/data/plan/random.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/mixture_world.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Mixture, EverySampleComesOnceInEachOfItsDataSetsEpochs) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const World world(seed);
    const LengthsInMemory source(world.lengths, "data");
    PlanOptions options{.ranks = 1 + static_cast<int>(seed % 4), .cap = 130, .cost = {10, 1}, .seed = seed};
    options.accumulate = 1 + static_cast<int>(seed % 3);
    options.padded = seed % 4 == 3;
    MixturePlanner planner(source, options, world.mixture);
    Seen seen;
    std::uint64_t used = 0;
    const PlanState end = use(planner, ~std::uint64_t{0}, seen, used);
    EXPECT_EQ(used, world.mixture.steps * static_cast<std::uint64_t>(options.accumulate));
    EXPECT_GT(end.mixture->drawn[2], 20U) << "the tiny one must have begun again and again";
    expect_beginnings(world, options, seen, end, fmt::format("seed {}", seed));
  }
}

TEST(Mixture, EveryMicroBatchKeepsTheCapAndNoStepIsShort) {
  const World world(5);
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 3, .cap = 400, .accumulate = 2, .cost = {10, 1}};
  MixturePlanner planner(source, options, world.mixture);
  std::uint64_t steps = 0;
  for (PlannedBlock block; planner.next_block(block);) {
    for (std::size_t step = 0; step < block.plan.steps(); ++step, ++steps) {
      std::uint64_t tokens = 0;
      for (int rank = 0; rank < 3; ++rank) {
        for (int m = 0; m < 2; ++m) {
          std::uint64_t sum = 0;
          for (const SampleId id : block.plan.micro_batch(step, rank, m)) sum += world.lengths[sample_of(id)];
          EXPECT_LE(sum, 400U);
          EXPECT_GT(sum, 0U);
          tokens += sum;
        }
      }
      EXPECT_GT(tokens, 6 * 400 * 9 / 10) << "step " << steps;
    }
  }
  EXPECT_EQ(steps, world.mixture.steps);
}

TEST(Mixture, SharesOfTokensFollowTheWeightsOfEachRange) {
  World world(1, 300);
  world.mixture.ranges = {{.first_step = 0, .weights = {1, 1, 0}, .longest = 0},
                          {.first_step = 100, .weights = {8, 2, 0}, .longest = 0},
                          {.first_step = 201, .weights = {0, 0.5, 0.5}, .longest = 0}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 500, .cost = {10, 1}};
  MixturePlanner planner(source, options, world.mixture);
  std::vector<std::vector<double>> tokens(3, std::vector<double>(3, 0.0));
  std::uint64_t steps = 0;
  for (PlannedBlock block; planner.next_block(block);) {
    EXPECT_EQ(block.start.steps_before, steps);
    for (std::size_t step = 0; step < block.plan.steps(); ++step, ++steps) {
      const std::size_t range = world.mixture.range_of(steps);
      for (int rank = 0; rank < 2; ++rank) {
        for (const SampleId id : block.plan.micro_batch(step, rank, 0)) {
          const SampleId sample = sample_of(id);
          tokens[range][sample < 700 ? 0 : sample < 790 ? 1 : 2] += world.lengths[sample];
        }
      }
    }
  }
  EXPECT_EQ(steps, 300U);
  const double expected[3][3] = {{0.5, 0.5, 0}, {0.8, 0.2, 0}, {0, 0.5, 0.5}};
  for (std::size_t range = 0; range < 3; ++range) {
    const double sum = tokens[range][0] + tokens[range][1] + tokens[range][2];
    for (std::size_t part = 0; part < 3; ++part) {
      EXPECT_NEAR(tokens[range][part] / sum, expected[range][part], 0.01)
          << "range " << range << ", part " << part;
    }
  }
}

// A range's last block was drawn for many ranks; on fewer ones, most of it is not used before the border.
TEST(Mixture, ResumedOnFewerRanksEveryRangeKeepsToItsWeights) {
  World world(1, 90);
  world.lengths.assign(6000, 100);
  world.mixture.parts = {{"first", 3000}, {"second", 3000}};
  world.mixture.ranges = {{.first_step = 0, .weights = {1, 0}, .longest = 0},
                          {.first_step = 30, .weights = {0, 1}, .longest = 0},
                          {.first_step = 60, .weights = {1, 3}, .longest = 0}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions many{.ranks = 16, .cap = 1000};
  for (const int ranks : {1, 3, 16, 40}) {
    const std::string what = fmt::format("on {} ranks", ranks);
    Seen seen;
    std::uint64_t used = 0;
    MixturePlanner planner(source, many, world.mixture);
    const PlanState state = use(planner, 5, seen, used);
    PlanOptions options = many;
    options.ranks = ranks;
    MixturePlanner again(source, options, world.mixture, state);
    std::uint64_t step = 5;
    std::uint64_t firsts = 0;
    std::uint64_t both = 0;
    PlannedBlock block;
    while (again.next_block(block)) {
      for (std::uint64_t i = block.start.done; i < block.plan.micro_batches_per_rank(); ++i, ++step) {
        see(block.plan, i, seen);
        for (int rank = 0; rank < ranks; ++rank) {
          for (const SampleId id : block.plan.micro_batch(i, rank, 0)) {
            const bool first = sample_of(id) < 3000;
            if (step < 60) {
              ASSERT_EQ(first, step < 30) << what << ", step " << step;
            }
            if (step >= 60) ++both;
            if (step >= 60 && first) ++firsts;
          }
        }
      }
    }
    EXPECT_EQ(step, 90U) << what;
    EXPECT_NEAR(static_cast<double>(firsts) / static_cast<double>(both), 0.25, 0.01) << what;
    expect_beginnings(world, many, seen, block.start, what);
    EXPECT_EQ(nlohmann::json(through_text(block.start)), nlohmann::json(block.start));
  }
}

TEST(Mixture, ARangesLongestSampleCutsLongerOnesThereAndOnlyThere) {
  World world(2, 120);
  world.mixture.ranges = {{.first_step = 0, .weights = {1, 1, 1}, .longest = 30},
                          {.first_step = 50, .weights = {1, 1, 1}, .longest = 0},
                          {.first_step = 90, .weights = {1, 1, 1}, .longest = 30}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 200, .cost = {10, 1}};
  MixturePlanner planner(source, options, world.mixture);
  std::uint64_t steps = 0;
  std::uint32_t longest_early = 0;
  std::uint32_t longest_late = 0;
  std::uint64_t early_tokens = 0;
  for (PlannedBlock block; planner.next_block(block);) {
    for (std::size_t step = 0; step < block.plan.steps(); ++step, ++steps) {
      for (int rank = 0; rank < 2; ++rank) {
        std::uint64_t sum = 0;
        for (const SampleId id : block.plan.micro_batch(step, rank, 0)) {
          const std::uint32_t length = planned_length(id, world.lengths[sample_of(id)], block.plan.options());
          sum += length;
          std::uint32_t& longest = steps < 50 || steps >= 90 ? longest_early : longest_late;
          longest = std::max(longest, length);
        }
        EXPECT_LE(sum, 200U);
        if (steps < 50) early_tokens += sum;
      }
    }
  }
  EXPECT_EQ(steps, 120U);
  EXPECT_EQ(longest_early, 30U);
  EXPECT_GT(longest_late, 90U);
  EXPECT_GT(early_tokens, 50 * 2 * 200 * 9 / 10) << "steps of short samples are as full as others";
}

TEST(Mixture, GoesOnAtAnyMicroBatchOnAnyNumberOfRanksAndAgainOnAThird) {
  World world(3, 25);
  world.mixture.ranges.push_back({.first_step = 11, .weights = {1, 0, 2}, .longest = 40});
  expect_it_goes_on(world, {.ranks = 2, .cap = 150, .accumulate = 2, .cost = {10, 1}, .seed = 9}, 1);
}

TEST(Mixture, OnAsManyRanksItGoesOnWithTheStepsThatWouldHaveCome) {
  World world(4, 40);
  world.mixture.ranges.push_back({.first_step = 13, .weights = {1, 5, 2}, .longest = 70});
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 300, .accumulate = 2, .cost = {10, 1}};
  const auto steps_of = [](MixturePlanner& planner) {
    std::vector<SampleId> ids;
    for (PlannedBlock block; planner.next_block(block);) {
      for (std::uint64_t i = block.start.done; i < block.plan.micro_batches_per_rank(); ++i) {
        for (int rank = 0; rank < 2; ++rank) {
          const auto batch = block.plan.micro_batch(i / 2, rank, static_cast<int>(i % 2));
          ids.insert(ids.end(), batch.begin(), batch.end());
          ids.push_back(~SampleId{0});
        }
      }
    }
    return ids;
  };
  for (const std::uint64_t stop : {0U, 1U, 17U, 26U, 40U, 79U}) {
    MixturePlanner planner(source, options, world.mixture);
    MixturePlanner whole(source, options, world.mixture);
    Seen seen;
    std::uint64_t used = 0;
    const PlanState state = use(planner, stop, seen, used);
    MixturePlanner again(source, options, world.mixture, state);
    const std::vector<SampleId> expected = steps_of(whole);
    const std::vector<SampleId> rest = steps_of(again);
    ASSERT_LE(rest.size(), expected.size());
    EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), expected.rbegin())) << "stopped after " << stop;
    EXPECT_EQ(std::count(rest.begin(), rest.end(), ~SampleId{0}), 160 - 2 * static_cast<int>(stop));
  }
}

TEST(Mixture, GoesThroughDataOfManyBlocks) {
  World world(6, 900);
  world.lengths = length_lists(700'000, 500, 3)[1].lengths;
  world.mixture.parts = {{"large", 600'000}, {"small", 100'000}};
  world.mixture.ranges = {{.first_step = 0, .weights = {1, 1}, .longest = 0}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 8, .cap = 4096, .cost = {3000, 1}};
  MixturePlanner planner(source, options, world.mixture);
  Seen seen;
  std::uint64_t used = 0;
  const PlanState end = use(planner, ~std::uint64_t{0}, seen, used);
  EXPECT_GT(end.mixture->drawn[1], 200'000U);
  EXPECT_GT(end.block, 2U);
  expect_beginnings(world, options, seen, end, "many blocks");
  const std::vector<MixtureProgress> progress = progress_of(world.mixture, end);
  EXPECT_EQ(progress[1].name, "small");
  EXPECT_EQ(progress[1].epoch * 100'000 + progress[1].samples, end.mixture->drawn[1]);
}

// Where micro-batches hold two samples or three, many steps are fitted together; a range may end between
// them.
TEST(Mixture, StepsThatWereFittedTogetherAreGivenBackWhereARangeEnds) {
  World world(1, 30);
  world.lengths.assign(2000, 0);
  for (std::size_t i = 0; i < world.lengths.size(); ++i) {
    world.lengths[i] = static_cast<std::uint32_t>(25 + i * 7919 % 60);
  }
  world.mixture.parts = {{"first", 1000}, {"second", 1000}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 4, .cap = 100, .cost = {10, 1}};
  for (const std::uint64_t first : {1U, 3U, 7U, 12U}) {
    world.mixture.ranges = {{.first_step = 0, .weights = {1, 1}, .longest = 0},
                            {.first_step = first, .weights = {1, 3}, .longest = 0}};
    MixturePlanner planner(source, options, world.mixture);
    Seen seen;
    std::uint64_t used = 0;
    const PlanState end = use(planner, ~std::uint64_t{0}, seen, used);
    EXPECT_EQ(used, 30U);
    expect_beginnings(world, options, seen, end, fmt::format("a range of {} steps", first));
  }
}

TEST(Mixture, MayGoOnForMoreStepsThanItBeganWith) {
  World world(7, 20);
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 200, .cost = {10, 1}};
  MixturePlanner planner(source, options, world.mixture);
  Seen seen;
  std::uint64_t used = 0;
  const PlanState state = use(planner, ~std::uint64_t{0}, seen, used);
  EXPECT_EQ(used, 20U);
  world.mixture.steps = 45;
  MixturePlanner longer(source, options, world.mixture, state);
  const PlanState end = use(longer, ~std::uint64_t{0}, seen, used);
  EXPECT_EQ(used, 25U);
  expect_beginnings(world, options, seen, end, "longer");
}

TEST(Mixture, OverLongSamplesAreRefusedCutOrSkipped) {
  World world(8, 100);
  world.lengths[705] = 400;
  const LengthsInMemory source(world.lengths, "data");
  PlanOptions options{.ranks = 2, .cap = 200, .cost = {10, 1}};
  Seen seen;
  std::uint64_t used = 0;
  const auto run = [&] {
    MixturePlanner planner(source, options, world.mixture);
    use(planner, ~std::uint64_t{0}, seen, used);
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("sample 705 (of 'books')"), HasSubstr("400 tokens"),
                                              HasSubstr("cap of 200"))));
  options.too_long = TooLong::skip;
  seen.clear();
  run();
  const auto sightings = [&](SampleId sample) {
    int times = 0;
    for (const auto& [id, count] : seen) times += sample_of(id) == sample ? count : 0;
    return times;
  };
  EXPECT_EQ(sightings(705), 0);
  EXPECT_GT(sightings(706), 0);
  options.too_long = TooLong::truncate;
  seen.clear();
  run();
  EXPECT_GT(sightings(705), 0);
  options.too_long = TooLong::skip;
  world.mixture.parts = {{"web", 705}, {"long", 1}, {"rest", world.lengths.size() - 706}};
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("every sample of 'long'")));
  world.lengths[705] = 0;
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("sample 705 (of 'long') is empty")));
}

TEST(Mixture, WhatIsWrongWithItIsSaid) {
  const World good(1);
  const std::size_t samples = good.lengths.size();
  const auto refused = [&](const std::function<void(Mixture&)>& damage, const std::string& why) {
    Mixture mixture = good.mixture;
    damage(mixture);
    EXPECT_THAT([&] { check_mixture(mixture, samples); }, ThrowsMessage<UsageError>(HasSubstr(why)));
  };
  EXPECT_NO_THROW(check_mixture(good.mixture, samples));
  refused([](Mixture& m) { m.parts.clear(); }, "at least one data set");
  refused([](Mixture& m) { m.parts[1].samples = 0; }, "'books' has no samples");
  refused([](Mixture& m) { m.parts[1].samples += 1; }, "792 samples together, the data 791");
  refused([](Mixture& m) { m.steps = 0; }, "number of steps");
  refused([](Mixture& m) { m.ranges.clear(); }, "at least one range");
  refused([](Mixture& m) { m.ranges[0].first_step = 1; }, "begins at step 1, not 0");
  refused([](Mixture& m) { m.ranges.push_back(m.ranges[0]); }, "not behind step 0");
  refused([](Mixture& m) { m.ranges[0].weights.pop_back(); }, "2 weights for 3 data sets");
  refused([](Mixture& m) { m.ranges[0].weights[2] = -1; }, "weight of 'tiny'");
  refused([](Mixture& m) { m.ranges[0].weights[0] = std::nan(""); }, "weight of 'web'");
  refused([](Mixture& m) { m.ranges[0].weights = {0, 0, 0}; }, "all weights from step 0 on are 0");
}

TEST(Mixture, AStateOfOtherDataOrAnotherMixtureIsRefused) {
  const World world(1);
  const LengthsInMemory source(world.lengths, "these");
  const LengthsInMemory others(world.lengths, "others");
  const PlanOptions options{.ranks = 2, .cap = 200};
  MixturePlanner planner(source, options, world.mixture);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  const PlanState state = planner.state_after(block, 2);
  EXPECT_THAT([&] { MixturePlanner(others, options, world.mixture, state); },
              ThrowsMessage<Error>(HasSubstr("other data")));
  Mixture mixture = world.mixture;
  mixture.ranges[0].weights[0] = 7;
  EXPECT_THAT([&] { MixturePlanner(source, options, mixture, state); },
              ThrowsMessage<Error>(HasSubstr("another mixture")));
  PlanOptions seed = options;
  seed.seed = 3;
  EXPECT_THAT([&] { MixturePlanner(source, seed, world.mixture, state); },
              ThrowsMessage<Error>(HasSubstr("another mixture or order")));
  PlanState damaged = state;
  damaged.mixture->drawn.pop_back();
  EXPECT_THAT([&] { MixturePlanner(source, options, world.mixture, damaged); },
              ThrowsMessage<Error>(HasSubstr("where the mixture's 3 data sets are")));
}

}  // namespace
}  // namespace lockstep::data
