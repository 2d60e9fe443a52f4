// What becomes of samples that are longer than the cap where a mixture splits them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/error.h"
#include "tests/unit/runtime/data/mixture_world.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MixtureSplit, EveryPieceComesOnceInEachEpochWithinTheCap) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const World world(seed);
    const LengthsInMemory source(world.lengths, "data");
    PlanOptions options{.ranks = 1 + static_cast<int>(seed % 4), .cap = 23 + seed, .cost = {10, 1}};
    options.accumulate = 1 + static_cast<int>(seed % 3);
    options.padded = seed % 4 == 3;
    options.pad_multiple = 1;
    options.seed = seed;
    options.too_long = TooLong::split;
    MixturePlanner planner(source, options, world.mixture);
    Seen seen;
    PlannedBlock block;
    while (planner.next_block(block)) {
      for (std::uint64_t i = 0; i < block.plan.micro_batches_per_rank(); ++i) {
        see(block.plan, i, seen);
        for (int rank = 0; rank < options.ranks; ++rank) {
          const auto accumulate = static_cast<std::uint64_t>(options.accumulate);
          std::uint64_t sum = 0;
          for (const SampleId id :
               block.plan.micro_batch(i / accumulate, rank, static_cast<int>(i % accumulate))) {
            const std::uint64_t whole = world.lengths[sample_of(id)];
            ASSERT_LT(piece_of(id) * options.cap, whole);
            sum += std::min(options.cap, whole - piece_of(id) * options.cap);
          }
          ASSERT_LE(sum, options.cap) << "seed " << seed;
        }
      }
    }
    const bool any = std::ranges::any_of(seen, [](const auto& one) { return piece_of(one.first) > 1; });
    EXPECT_TRUE(any) << "seed " << seed;
    expect_beginnings(world, options, seen, block.start, fmt::format("seed {}", seed));
  }
}

TEST(MixtureSplit, GoesOnAtAnyMicroBatchOnAnyNumberOfRanksAndAgainOnAThird) {
  World world(3, 25);
  world.mixture.ranges.push_back({.first_step = 11, .weights = {1, 0, 2}, .longest = 0});
  world.lengths[3] = 900;  // its pieces wait over several steps
  expect_it_goes_on(
      world, {.ranks = 2, .cap = 40, .accumulate = 2, .cost = {10, 1}, .seed = 9, .too_long = TooLong::split},
      3);
}

// A part whose every sample is many pieces does not get ahead of its weight with them.
TEST(MixtureSplit, SharesOfTokensFollowTheWeightsInEveryStep) {
  World world(1, 100);
  world.lengths.assign(400, 50);
  world.lengths.resize(440, 5000);
  world.mixture.parts = {{"short", 400}, {"long", 40}};
  world.mixture.ranges = {{.first_step = 0, .weights = {3, 1}, .longest = 0}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 4, .cap = 500, .accumulate = 4, .too_long = TooLong::split};
  MixturePlanner planner(source, options, world.mixture);
  for (PlannedBlock block; planner.next_block(block);) {
    for (std::size_t step = 0; step < block.plan.steps(); ++step) {
      double all = 0;
      double of_long = 0;
      for_each_sample(block.plan, step * 4, step * 4 + 4, [&](SampleId id) {
        const double tokens = planned_length(id, world.lengths[sample_of(id)], options);
        all += tokens;
        if (sample_of(id) >= 400) of_long += tokens;
      });
      EXPECT_NEAR(of_long / all, 0.25, 0.1) << "step " << block.start.steps_before + step;
    }
  }
}

TEST(MixtureSplit, APieceThatARangeCutsOffWaitsForAnotherRange) {
  World world(1, 90);
  world.lengths.assign(300, 10);
  world.lengths[299] = 2000;  // forty pieces
  world.mixture.parts = {{"short", 299}, {"giant", 1}};
  world.mixture.ranges = {{.first_step = 0, .weights = {9, 1}, .longest = 0},
                          {.first_step = 20, .weights = {9, 1}, .longest = 120},
                          {.first_step = 60, .weights = {9, 1}, .longest = 0}};
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 50, .too_long = TooLong::split};
  MixturePlanner planner(source, options, world.mixture);
  std::vector<std::set<std::uint64_t>> pieces(3);  // of the giant's first epoch, by range
  Seen seen;
  std::uint64_t step = 0;
  for (PlannedBlock block; planner.next_block(block);) {
    for (std::uint64_t i = 0; i < block.plan.micro_batches_per_rank(); ++i, ++step) {
      const std::size_t range = world.mixture.range_of(step);
      for_each_sample(block.plan, i, i + 1, [&](SampleId id) {
        ++seen[id];
        if (sample_of(id) != 299) return;
        if (range == 1) {
          EXPECT_LT(piece_of(id) * 50, 120U) << "step " << step;
        }
        if (epoch_of(id) == 0) pieces[range].insert(piece_of(id));
      });
    }
  }
  EXPECT_EQ(step, 90U);
  for (const auto& [id, times] : seen) {
    if (sample_of(id) != 299) continue;
    EXPECT_EQ(times, 1) << "piece " << piece_of(id) << " of epoch " << epoch_of(id);
  }
  EXPECT_FALSE(pieces[0].empty());
  EXPECT_GT(pieces[2].size(), 0U) << "what waited comes where nothing is cut off";
  for (const std::uint64_t piece : pieces[2]) EXPECT_FALSE(pieces[0].contains(piece));
}

TEST(MixtureSplit, MorePiecesThanAreCountedAreRefused) {
  World world(1);
  world.lengths[705] = 70'000;
  world.mixture.parts = {{"web", 705}, {"giant", 1}, {"rest", world.lengths.size() - 706}};
  world.mixture.ranges[0].weights = {1, 1, 0};
  const LengthsInMemory source(world.lengths, "data");
  MixturePlanner planner(source, {.cap = 1, .too_long = TooLong::split}, world.mixture);
  PlannedBlock block;
  EXPECT_THAT([&] { planner.next_block(block); },
              ThrowsMessage<Error>(AllOf(HasSubstr("sample 705 (of 'giant')"), HasSubstr("65536 pieces"))));
}

TEST(MixtureSplit, AStateWithAPieceThatThereIsNotIsRefused) {
  const World world(1);
  const LengthsInMemory source(world.lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 30, .too_long = TooLong::split};
  MixturePlanner planner(source, options, world.mixture);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  PlanState state = planner.next_start();
  state.carried.insert(state.carried.begin(), SampleId{5} | SampleId{9} << kPieceShift);
  World longer = world;
  longer.mixture.steps += 10;
  MixturePlanner again(source, options, longer.mixture, state);
  EXPECT_THAT([&] { again.next_block(block); },
              ThrowsMessage<Error>(AllOf(HasSubstr("sample 5 (of 'web')"), HasSubstr("no piece 9"))));
}

}  // namespace
}  // namespace lockstep::data
