
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "common/error.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/mixture/mixture_world.h"
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"
#include "tests/unit/runtime/data/plan/random_options.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Mixture, UsesEverySampleOnceInEachEpochOfItsDataSetWithAnyOptions) {
  RandomOptions random(21);
  for (unsigned seed = 0; seed < 60; ++seed) {
    MixtureWorld world(seed);
    world.mixture.weights = {random.pick(1, 9) / 1.0, random.pick(1, 9) / 2.0, random.pick(1, 9) / 3.0};
    const LengthsInMemory source(world.lengths, "data");
    PlanOptions options = random.next(100, 20);
    options.cap = std::min<std::uint64_t>(options.cap, 300);  // the tiny data set is used often enough
    options.step_tokens = 0;
    const std::string what = fmt::format("world {}: {}", seed, describe(options));
    MixturePlanner planner(source, options, world.mixture);
    TrainingRun run;
    use(planner, kAllSteps, run);
    ASSERT_EQ(run.steps.size(), 60U) << what;
    expect_stream_prefixes(world, options, run.uses, planner, what);
    const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
    EXPECT_EQ(nested(plan), run.steps) << what;
    expect_steps(plan, world.lengths, what);
    EXPECT_NO_THROW(check_plan(plan, {world.lengths, "data"})) << what;
    if (HasFatalFailure()) return;
  }
}

// The test above shows that the check accepts a plan of a mixture; this one shows that it finds mistakes in one.
TEST(Mixture, TheCheckFindsMistakesInAPlan) {
  const MixtureWorld world(1);
  const PlanOptions options{.ranks = 2, .cap = 130};
  const Plan good = make_mixture_plan(world.lengths, options, world.mixture, "data");
  const auto refused = [&](const std::function<void(Nested&)>& damage, const std::string& why) {
    Nested steps = nested(good);
    damage(steps);
    Plan plan(options, world.lengths.size(), "data");
    plan.set_mixture(std::make_shared<PlannedMixture>(*good.mixture()));
    for (const auto& step : steps) plan.append_step(step);
    EXPECT_THAT([&] { check_plan(plan, {world.lengths, "data"}); }, ThrowsMessage<Error>(HasSubstr(why)));
  };
  const auto sample = [](Nested& steps) -> SampleId& { return steps.back()[0][0][0]; };
  refused([](Nested& steps) { steps.pop_back(); }, "has 59 steps, but its mixture has 60");
  refused([](Nested& steps) { steps.back()[0][0].pop_back(); }, "samples of 'web' are in epoch");
  refused([&](Nested& steps) { sample(steps) ^= SampleId{77} << kEpochShift; }, "of 'web'");
}

// As in an epoch (StepTokens.AreTheSameOnAnyNumberOfRanks…): samples are up to half a step, so whole steps need later ones.
TEST(Mixture, StepTokensAreAPromiseOnAnyNumberOfRanks) {
  MixtureWorld world(5, 200);
  std::mt19937 random(1);
  for (std::uint32_t& length : world.lengths) length = 64 + random() % 448;
  const LengthsInMemory source(world.lengths, "data");
  std::vector<std::uint64_t> on_one_rank;
  for (const int ranks : {1, 2, 3, 4}) {
    const PlanOptions options{.ranks = ranks, .cap = 512, .step_tokens = 1024, .cost = {3000, 1}};
    MixturePlanner planner(source, options, world.mixture);
    TrainingRun run;
    std::vector<std::uint64_t> tokens;
    for (PlannedBlock block; planner.next_block(block);) {
      for (std::size_t step = 0; step < block.plan.steps(); ++step) {
        tokens.push_back(0);
        for (const SampleId id : block.plan.step_samples(step)) {
          ++run.uses[id];
          tokens.back() += planned_length(id, world.lengths[sample_of(id)], block.plan.options());
        }
      }
    }
    EXPECT_EQ(tokens.size(), 200U);
    EXPECT_LE(*std::ranges::max_element(tokens), 1024U) << ranks;
    EXPECT_GE(std::accumulate(tokens.begin(), tokens.end(), 0.0), 0.95 * 1024 * 200) << ranks;
    if (ranks == 1) on_one_rank = tokens;
    EXPECT_EQ(tokens, on_one_rank) << ranks << " ranks";
    expect_stream_prefixes(world, options, run.uses, planner, fmt::format("{} ranks", ranks));
    const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
    EXPECT_NO_THROW(check_plan(plan, {world.lengths, "data"})) << ranks;
  }
}

TEST(Mixture, ResumesStepsOfPromisedTokens) {
  MixtureWorld world(3, 25);
  std::mt19937 random(2);
  for (std::uint32_t& length : world.lengths) length = 20 + random() % 100;
  PlanOptions options{.ranks = 2, .cap = 150, .step_tokens = 300, .cost = {10, 1}, .seed = 9};
  expect_resumes(world, options, 1);
  options.cap = 50;
  options.too_long = TooLong::split;
  expect_resumes(world, options, 1);
}

// After every step the tokens of each data set differ from its weight by at most a few samples.
void expect_shares(const MixtureWorld& world, const PlanOptions& options, const Nested& steps,
                   std::vector<double> tokens, const std::string& what) {
  double longest = world.longest();
  if (options.too_long != TooLong::refuse) longest = std::min(longest, static_cast<double>(options.cap));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const auto& rank : steps[i]) {
      for (const auto& batch : rank) {
        for (const SampleId id : batch)
          tokens[world.part_of(id)] += planned_length(id, world.lengths[sample_of(id)], options);
      }
    }
    double all = 0;
    double weights = 0;
    for (std::size_t part = 0; part < tokens.size(); ++part) {
      all += tokens[part];
      weights += world.mixture.weights[part];
    }
    for (std::size_t part = 0; part < tokens.size(); ++part) {
      ASSERT_NEAR(tokens[part], all * world.mixture.weights[part] / weights, 3 * longest)
          << what << ", step " << i << ", part " << part;
    }
  }
}

TEST(Mixture, SharesOfTokensFollowTheWeightsInEveryStep) {
  const MixtureWorld world(1, 300);
  const LengthsInMemory source(world.lengths, "data");
  for (const TooLong too_long : {TooLong::refuse, TooLong::split, TooLong::truncate}) {
    PlanOptions options{.ranks = 2, .cap = 500, .cost = {10, 1}, .too_long = too_long};
    if (too_long != TooLong::refuse) options.cap = 35;
    MixturePlanner planner(source, options, world.mixture);
    TrainingRun run;
    use(planner, kAllSteps, run);
    ASSERT_EQ(run.steps.size(), 300U);
    expect_shares(world, options, run.steps, {0, 0, 0}, name_of(too_long));
  }
}

TEST(Mixture, FollowsItsWeightsWhenResumedOnOtherRanks) {
  const MixtureWorld world(1, 60);
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions first{.ranks = 16, .cap = 200};
  for (const std::uint64_t stop : {1U, 5U, 20U, 41U, 59U}) {
    TrainingRun before;
    MixturePlanner planner(source, first, world.mixture);
    use(planner, stop, before);
    const std::vector<std::uint64_t>& used = before.state.position.mixture->tokens;
    for (const int ranks : {1, 3, 16, 40}) {
      PlanOptions options = first;
      options.ranks = ranks;
      MixturePlanner again(source, options, world.mixture, before.state);
      TrainingRun after;
      use(again, kAllSteps, after);
      ASSERT_EQ(after.steps.size(), 60 - stop);
      expect_shares(world, options, after.steps, {used.begin(), used.end()},
                    fmt::format("stopped after {}, on {} ranks", stop, ranks));
    }
  }
}

TEST(Mixture, ResumesAfterEveryStepOnOtherNumbersOfRanks) {
  const MixtureWorld world(3, 25);
  PlanOptions options{.ranks = 2, .cap = 150, .accumulate = 2, .cost = {10, 1}, .seed = 9};
  expect_resumes(world, options, 1);
  options.padded = true;
  options.order = Order::sequential;
  options.equal_micro_batches = true;
  expect_resumes(world, options, 2);
  options.cap = 60;
  for (const TooLong too_long : {TooLong::skip, TooLong::truncate}) {
    options.too_long = too_long;
    expect_resumes(world, options, 4);
  }
}

// A block of a mixture ends with a step, so the samples of its last block of data are read again.
TEST(Mixture, UsesDataOfManyBlocks) {
  MixtureWorld world(6, 900);
  world.lengths = length_lists(700'000, 500, 3)[1].lengths;
  world.mixture.parts = {{"large", 600'000}, {"small", 100'000}};
  world.mixture.weights = {1, 1};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 8, .cap = 4096, .cost = {3000, 1}};
  MixturePlanner planner(source, options, world.mixture);
  std::map<SampleId, int> uses;
  std::vector<PlanState> starts;
  Plan plan(options, world.lengths.size(), "data");
  for (PlannedBlock block; planner.next_block(block);) {
    starts.push_back(block.start);
    plan.append(block.plan);
    for (const SampleId id : block.plan.sample_ids()) ++uses[id];
  }
  EXPECT_EQ(plan.steps(), 900U);
  EXPECT_GT(starts.size(), 2U);
  const PlanState& end = planner.state();
  EXPECT_GT(end.position.mixture->drawn[1], 200'000U);
  expect_stream_prefixes(world, options, uses, planner, "many blocks");
  const std::vector<MixtureProgress> progress = progress_of(world.mixture, end);
  EXPECT_EQ(progress[1].name, "small");
  EXPECT_EQ(progress[1].epoch_samples, 100'000U);
  EXPECT_EQ(progress[1].epoch * 100'000 + progress[1].samples, end.position.mixture->drawn[1]);
  MixturePlanner again(source, options, world.mixture, through_text(starts.back()));
  Plan rest(options, world.lengths.size(), "data");
  for (PlannedBlock block; again.next_block(block);) rest.append(block.plan);
  EXPECT_TRUE(nested(rest) == nested(plan, starts.back().steps));
}

TEST(Mixture, MayResumeWithMoreSteps) {
  MixtureWorld world(7, 20);
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 200, .cost = {10, 1}};
  MixturePlanner planner(source, options, world.mixture);
  TrainingRun run;
  use(planner, kAllSteps, run);
  EXPECT_EQ(run.steps.size(), 20U);
  world.mixture.steps = 45;
  MixturePlanner longer(source, options, world.mixture, run.state);
  use(longer, kAllSteps, run);
  expect_stream_prefixes(world, options, run.uses, longer, "longer");
  MixturePlanner at_once(source, options, world.mixture);
  TrainingRun whole;
  use(at_once, kAllSteps, whole);
  EXPECT_EQ(run.steps, whole.steps);
}

TEST(Mixture, RefusesCutsOrSkipsOverLongSamples) {
  MixtureWorld world(8, 100);
  world.lengths[705] = 400;
  PlanOptions options{.ranks = 2, .cap = 200, .cost = {10, 1}};
  std::set<SampleId> seen;
  const auto run = [&] {
    seen.clear();
    const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
    for (const SampleId id : plan.sample_ids()) seen.insert(sample_of(id));
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("sample 705 (of 'books')"), HasSubstr("400 tokens"),
                                              HasSubstr("cap of 200"))));
  options.too_long = TooLong::skip;
  run();
  EXPECT_FALSE(seen.contains(705));
  EXPECT_TRUE(seen.contains(706));
  options.too_long = TooLong::truncate;
  run();
  EXPECT_TRUE(seen.contains(705));
  options.too_long = TooLong::skip;
  world.mixture.parts = {{"web", 705}, {"long", 1}, {"rest", world.lengths.size() - 706}};
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("every sample of 'long'")));
  world.lengths[705] = 0;
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("every sample of 'long' is empty or longer")));
  options.too_long = TooLong::refuse;
  world.mixture.parts = {{"web", world.lengths.size()}};
  world.mixture.weights = {1};
  world.mixture.steps = 300;  // several epochs
  run();
  EXPECT_FALSE(seen.contains(705)) << "an empty sample is left out";
  EXPECT_EQ(seen.size(), world.lengths.size() - 1);
}

TEST(Mixture, MistakesAreReported) {
  const MixtureWorld good(1);
  const std::size_t samples = good.lengths.size();
  const auto refused = [&](const std::function<void(Mixture&)>& damage, const std::string& why) {
    Mixture mixture = good.mixture;
    damage(mixture);
    EXPECT_THAT([&] { check_mixture(mixture, samples); }, ThrowsMessage<UsageError>(HasSubstr(why)));
  };
  EXPECT_NO_THROW(check_mixture(good.mixture, samples));
  refused([](Mixture& m) { m.parts.clear(); }, "at least one data set");
  refused([](Mixture& m) { m.parts[1].samples = 0; }, "'books' has no samples");
  refused([](Mixture& m) { m.parts[1].samples += 1; }, "792 samples together, but the data have 791");
  refused([](Mixture& m) { m.steps = 0; }, "number of steps");
  refused([](Mixture& m) { m.weights.pop_back(); }, "2 weights for 3 data sets");
  refused([](Mixture& m) { m.weights[2] = 0; }, "weight of 'tiny' must be a finite number above 0, not 0");
  refused([](Mixture& m) { m.weights[0] = std::nan(""); }, "weight of 'web'");
  refused([](Mixture& m) { m.weights.assign(3, 1e308); }, "must have a finite sum");
}

TEST(Mixture, RefusesAStateOfOtherDataOrAnotherMixture) {
  const MixtureWorld world(1);
  const LengthsInMemory source(world.lengths, "these");
  const LengthsInMemory others(world.lengths, "others");
  const PlanOptions options{.ranks = 2, .cap = 200};
  MixturePlanner planner(source, options, world.mixture);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  const PlanState state = state_after(block, 2);
  EXPECT_THAT([&] { MixturePlanner(others, options, world.mixture, state); },
              ThrowsMessage<Error>(HasSubstr("other data")));
  Mixture mixture = world.mixture;
  mixture.weights[0] = 7;
  EXPECT_THAT([&] { MixturePlanner(source, options, mixture, state); },
              ThrowsMessage<Error>(HasSubstr("another order")));
  PlanOptions seed = options;
  seed.seed = 3;
  EXPECT_THAT(
      [&] { MixturePlanner(source, seed, world.mixture, state); },
      ThrowsMessage<Error>(AllOf(HasSubstr("another order"), HasSubstr("use the same mixture, seed"))));
  PlanState damaged = state;
  const auto refused = [&](const std::string& why) {
    EXPECT_THAT([&] { MixturePlanner(source, options, world.mixture, damaged); },
                ThrowsMessage<Error>(HasSubstr(why)));
    damaged = state;
  };
  damaged.position.mixture->drawn.pop_back();
  refused("positions of the mixture's 3 data sets");
  damaged.position.mixture->tokens.push_back(1);
  refused("positions of the mixture's 3 data sets");
  damaged.position.mixture.reset();
  refused("positions of the mixture's 3 data sets");
  damaged.position.mixture->drawn[1] = 0;
  damaged.position.mixture->piece[1] = 2;
  refused("a piece of a sample of 'books'");
}

}  // namespace
}  // namespace lockstep::data
