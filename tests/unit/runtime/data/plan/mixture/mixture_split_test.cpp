// Tests of mixtures that split samples longer than the cap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/plan/mixture/mixture_world.h"
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MixtureSplit, EveryPieceIsUsedOnceInEachEpochWithinTheCap) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const MixtureWorld world(seed);
    const LengthsInMemory source(world.lengths, "data");
    PlanOptions options{.ranks = 1 + static_cast<int>(seed % 4), .cap = 23 + seed, .cost = {10, 1}};
    options.accumulate = 1 + static_cast<int>(seed % 3);
    options.padded = seed % 4 == 3;
    options.pad_multiple = 1;
    options.seed = seed;
    options.too_long = TooLong::split;
    const std::string what = fmt::format("seed {}", seed);
    MixturePlanner planner(source, options, world.mixture);
    TrainingRun run;
    use(planner, kAllSteps, run);
    EXPECT_TRUE(std::ranges::any_of(run.uses, [](const auto& one) { return piece_of(one.first) > 1; }))
        << what;
    expect_stream_prefixes(world, options, run.uses, planner, what);
    const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
    expect_steps(plan, world.lengths, what);
    EXPECT_NO_THROW(check_plan(plan, {world.lengths, "data"})) << what;
  }
}

TEST(MixtureSplit, ResumesAfterEveryStepOnOtherNumbersOfRanks) {
  MixtureWorld world(3, 25);
  world.lengths[3] = 900;  // its pieces are in several steps
  expect_resumes(
      world, {.ranks = 2, .cap = 40, .accumulate = 2, .cost = {10, 1}, .seed = 9, .too_long = TooLong::split},
      1);
}

// A part whose samples all have many pieces does not exceed its weight.
TEST(MixtureSplit, SharesOfTokensFollowTheWeightsInEveryStep) {
  MixtureWorld world(1, 100);
  world.lengths.assign(400, 50);
  world.lengths.resize(440, 5000);
  world.mixture.parts = {{"short", 400}, {"long", 40}};
  world.mixture.weights = {3, 1};
  const PlanOptions options{.ranks = 4, .cap = 500, .accumulate = 4, .too_long = TooLong::split};
  const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    double all = 0;
    double of_long = 0;
    for (const SampleId id : plan.step_samples(step)) {
      const double tokens = planned_length(id, world.lengths[sample_of(id)], options);
      all += tokens;
      if (sample_of(id) >= 400) of_long += tokens;
    }
    EXPECT_NEAR(of_long / all, 0.25, 0.1) << "step " << step;
  }
}

TEST(MixtureSplit, ThePlanListsTheUnusedPiecesOfTheLastSample) {
  MixtureWorld world(1, 1);
  world.lengths = {95};
  world.mixture.parts = {{"one", 1}};
  world.mixture.weights = {1};
  const PlanOptions options{.cap = 10, .step_tokens = 40, .too_long = TooLong::split};
  const Plan plan = make_mixture_plan(world.lengths, options, world.mixture, "data");
  EXPECT_EQ(plan.mixture()->drawn[0], 1U);
  std::vector<SampleId> expected;
  for (SampleId piece = 4; piece < 10; ++piece) expected.push_back(piece << kPieceShift);
  EXPECT_EQ(plan.mixture()->left, expected);
}

TEST(MixtureSplit, RefusesASampleOfTooManyPieces) {
  MixtureWorld world(1);
  world.lengths[705] = 70'000;
  world.mixture.parts = {{"web", 705}, {"giant", 1}, {"rest", world.lengths.size() - 706}};
  world.mixture.weights = {1, 1, 1};
  const LengthsInMemory source(world.lengths, "data");
  MixturePlanner planner(source, {.cap = 1, .too_long = TooLong::split}, world.mixture);
  PlannedBlock block;
  EXPECT_THAT([&] { planner.next_block(block); },
              ThrowsMessage<Error>(AllOf(HasSubstr("sample 705 (of 'giant')"), HasSubstr("65536 pieces"))));
}

}  // namespace
}  // namespace lockstep::data
