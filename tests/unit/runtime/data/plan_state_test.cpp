#include "runtime/data/plan/plan_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "common/error.h"
#include "runtime/data/plan/epoch_planner.h"
#include "runtime/data/plan/plan_stats.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/plan_uses.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Uses up to so many micro-batches from the planner, and returns where that leaves the epoch.
PlanState use(EpochPlanner& planner, std::uint64_t micro_batches, Seen& seen, std::uint64_t& used) {
  used = 0;
  PlanState state;
  for (PlannedBlock block; planner.next_block(block);) {
    for (std::uint64_t i = block.start.done; i < block.plan.micro_batches_per_rank(); ++i) {
      if (used == micro_batches) return through_text(planner.state_after(block, i));
      see(block.plan, i, seen);
      ++used;
    }
    state = planner.state_after(block, block.plan.micro_batches_per_rank());
  }
  return through_text(state);
}

std::vector<SampleId> rest_of(EpochPlanner& planner) {
  std::vector<SampleId> ids;
  for (PlannedBlock block; planner.next_block(block);) {
    const auto accumulate = static_cast<std::uint64_t>(block.plan.options().accumulate);
    for (std::uint64_t i = block.start.done; i < block.plan.micro_batches_per_rank(); ++i) {
      for (int rank = 0; rank < block.plan.options().ranks; ++rank) {
        for (const SampleId id :
             block.plan.micro_batch(i / accumulate, rank, static_cast<int>(i % accumulate))) {
          ids.push_back(id);
        }
        ids.push_back(~SampleId{0});
      }
    }
  }
  return ids;
}

void expect_once(const Seen& seen, std::size_t samples, const std::string& what) {
  EXPECT_EQ(seen.size(), samples) << what;
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << what << ": sample " << id;
}

TEST(PlanState, AnEpochGoesOnAtAnyMicroBatchOnAnyNumberOfRanksAndAgainOnAThird) {
  const std::vector<std::uint32_t> lengths = length_lists(160, 100, 3)[1].lengths;
  const LengthsInMemory source(lengths, "data");
  for (const bool padded : {false, true}) {
    const PlanOptions first{.ranks = 2, .cap = 120, .accumulate = 2, .cost = {10, 1}, .padded = padded};
    std::uint64_t all = 0;
    {
      EpochPlanner planner(source, first);
      Seen seen;
      use(planner, ~std::uint64_t{0}, seen, all);
      expect_once(seen, lengths.size(), "without a stop");
    }
    ASSERT_GT(all, 6U);
    for (std::uint64_t stop = 0; stop <= all; ++stop) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        Seen seen;
        std::uint64_t used = 0;
        EpochPlanner planner(source, first);
        PlanState state = use(planner, stop, seen, used);
        PlanOptions second = first;
        second.ranks = ranks;
        EpochPlanner again(source, second, state);
        state = use(again, 1 + stop % 3, seen, used);
        PlanOptions third = second;
        third.ranks = 1 + (ranks + 1) % 4;
        third.accumulate = 3;
        EpochPlanner last(source, third, state);
        use(last, ~std::uint64_t{0}, seen, used);
        expect_once(seen, lengths.size(), fmt::format("stopped after {}, on {} ranks", stop, ranks));
      }
    }
  }
}

TEST(PlanState, NoSampleIsLostOrSeenTwiceWhereverAnEpochStopsWhateverTheLengthsAndOptions) {
  std::mt19937 engine(5);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine);
  };
  for (unsigned seed = 0; seed < 12; ++seed) {
    for (const LengthList& list : length_lists(static_cast<std::size_t>(pick(2, 90)), 100, seed)) {
      if (list.lengths.empty()) continue;  // has no block to stop in
      const LengthsInMemory source(list.lengths, "data");
      PlanOptions first{.ranks = pick(1, 4), .accumulate = pick(1, 3), .seed = seed};
      first.cap = static_cast<std::uint64_t>(100 + pick(0, 1) * pick(0, 300));
      first.cost = {static_cast<double>(pick(0, 300)), static_cast<double>(pick(1, 3))};
      first.padded = pick(0, 2) == 0;
      std::uint64_t all = 1;
      for (std::uint64_t stop = 0; stop < all; ++stop) {
        for (int ranks = 1; ranks <= 3; ++ranks) {
          Seen seen;
          std::uint64_t used = 0;
          EpochPlanner planner(source, first);
          const PlanState state = use(planner, stop, seen, used);
          if (used == stop) all = std::max(all, stop + 2);
          PlanOptions second = first;
          second.ranks = ranks;
          EpochPlanner again(source, second, state);
          use(again, ~std::uint64_t{0}, seen, used);
          expect_once(
              seen, list.lengths.size(),
              fmt::format("{}, seed {}, stopped after {}, on {} ranks", list.name, seed, stop, ranks));
        }
      }
    }
  }
}

TEST(PlanState, GoingOnOnAsManyRanksGivesTheStepsThatWouldHaveCome) {
  // Several blocks, and a stop in the second.
  const std::vector<std::uint32_t> lengths = length_lists(600000, 500, 4)[1].lengths;
  const LengthsInMemory source(lengths, "data");
  const PlanOptions options{.ranks = 4, .cap = 16384, .accumulate = 2, .cost = {3000, 1}};
  EpochPlanner planner(source, options);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  ASSERT_TRUE(planner.next_block(block));
  EXPECT_FALSE(block.start.carried.empty());
  const std::uint64_t stop = block.plan.micro_batches_per_rank() / 2 + 1;
  const PlanState state = through_text(planner.state_after(block, stop));
  EpochPlanner again(source, options, state);
  PlannedBlock same;
  ASSERT_TRUE(again.next_block(same));
  EXPECT_EQ(same.start.done, stop);
  EXPECT_EQ(same.start.steps_before, block.start.steps_before);
  EXPECT_EQ(rest_of(again), rest_of(planner));
  EpochPlanner once_more(source, options, state);
  const std::vector<SampleId> rest = rest_of(once_more);
  PlanOptions other = options;
  other.ranks = 3;
  EpochPlanner fewer(source, other, state);
  std::size_t samples = 0;
  for (const SampleId id : rest_of(fewer)) samples += id == ~SampleId{0} ? 0 : 1;
  std::size_t expected = 0;
  for (const SampleId id : rest) expected += id == ~SampleId{0} ? 0 : 1;
  EXPECT_EQ(samples, expected);
}

TEST(PlanState, WhatAnotherVersionPlannedDifferentlyIsPlannedAnew) {
  const std::vector<std::uint32_t> lengths = length_lists(160, 100, 3)[1].lengths;
  const LengthsInMemory source(lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 120, .accumulate = 2, .cost = {10, 1}};
  EpochPlanner planner(source, options);
  Seen seen;
  std::uint64_t used = 0;
  PlanState state = use(planner, 5, seen, used);
  // As if another sample had been in those micro-batches than would be now.
  const auto in = std::find(state.used.begin(), state.used.end(), true);
  const auto out = std::find(state.used.begin(), state.used.begin() + 160, false);
  std::iter_swap(in, out);
  const auto left = static_cast<std::size_t>(std::count(state.used.begin(), state.used.begin() + 160, false));
  EpochPlanner again(source, options, state);
  PlannedBlock block;
  ASSERT_TRUE(again.next_block(block));
  EXPECT_EQ(block.start.done, 0U);
  EXPECT_EQ(block.start.steps_before, 3U) << "the step that was half done is one";
  EXPECT_EQ(block.plan.ids().size(), left);
}

TEST(PlanState, IsSmallHoweverLargeTheData) {
  const std::vector<std::uint32_t> lengths(1000000, 100);
  const LengthsInMemory source(lengths, "data");
  EpochPlanner planner(source, {.ranks = 2, .cap = 16384});
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  const std::string text = nlohmann::json(planner.state_after(block, 100)).dump();
  EXPECT_LT(text.size(), 100000U);
}

TEST(PlanState, OtherDataAndAnotherOrderAreRefusedSayingWhatDiffers) {
  const std::vector<std::uint32_t> lengths(1000, 10);
  const LengthsInMemory source(lengths, "these");
  const LengthsInMemory changed(lengths, "others");
  const PlanOptions options{.ranks = 2, .cap = 100};
  EpochPlanner planner(source, options);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  const PlanState state = planner.state_after(block, 3);
  EXPECT_THAT([&] { EpochPlanner(changed, options, state); },
              ThrowsMessage<Error>(AllOf(HasSubstr("other data"), HasSubstr("these"), HasSubstr("others"))));
  PlanOptions seed = options;
  seed.seed = 1;
  EXPECT_THAT([&] { EpochPlanner(source, seed, state); },
              ThrowsMessage<Error>(AllOf(HasSubstr("another order"), HasSubstr("seed"))));
}

TEST(PlanState, ThatIsDamagedIsRefusedSayingWhere) {
  const std::vector<std::uint32_t> lengths(1000, 10);
  const LengthsInMemory source(lengths, "these");
  EpochPlanner planner(source, {.ranks = 2, .cap = 100});
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  const nlohmann::json good = planner.state_after(block, 3);
  for (const auto& [name, value] : good.items()) {
    nlohmann::json damaged = good;
    damaged.erase(name);
    EXPECT_THAT([&] { (void)damaged.get<PlanState>(); }, ThrowsMessage<Error>(HasSubstr(name))) << name;
    damaged[name] = nlohmann::json::array({"x"});
    EXPECT_THAT([&] { (void)damaged.get<PlanState>(); }, ThrowsMessage<Error>(HasSubstr("planner's state")))
        << name;
  }
  nlohmann::json newer = good;
  newer["version"] = 2;
  EXPECT_THAT([&] { (void)newer.get<PlanState>(); }, ThrowsMessage<Error>(HasSubstr("version 2")));
}

TEST(OverLong, IsTruncatedSkippedOrSplitAsAskedAndCounted) {
  const std::vector<std::uint32_t> lengths = {10, 250, 30, 100};
  const LengthsInMemory source(lengths, "data");
  const auto ids = [&](TooLong too_long, OverLong& over_long) {
    EpochPlanner planner(source, {.ranks = 2, .cap = 100, .too_long = too_long});
    std::vector<SampleId> all;
    for (const SampleId id : rest_of(planner)) {
      if (id != ~SampleId{0}) all.push_back(id);
    }
    std::sort(all.begin(), all.end());
    over_long = planner.over_long();
    return all;
  };
  OverLong found;
  EXPECT_THAT(ids(TooLong::truncate, found), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(found.samples, 1U);
  EXPECT_EQ(found.tokens, 150U);
  EXPECT_EQ(found.first, 1U);
  EXPECT_THAT(ids(TooLong::skip, found), testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(found.tokens, 250U);
  const SampleId piece = SampleId{1} << kPieceShift;
  EXPECT_THAT(ids(TooLong::split, found), testing::ElementsAre(0, 1, 2, 3, piece | 1, 2 * piece | 1));
  EXPECT_EQ(found.tokens, 0U);
  EXPECT_EQ(sample_of(2 * piece | 1), 1U);
  EXPECT_EQ(piece_of(2 * piece | 1), 2U);
}

TEST(OverLong, MorePiecesThanAreCountedAreRefused) {
  const PlanOptions options{.cap = 1, .too_long = TooLong::split};
  const Plan plan = make_plan(std::vector<std::uint32_t>{2, 65536}, options);
  EXPECT_EQ(stats_of(plan, std::vector<std::uint32_t>{2, 65536}).dropped, 0U);
  EXPECT_THAT(
      [&] {
        make_plan(std::vector<std::uint32_t>{2, 65537}, options);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("sample 1 "), HasSubstr("65537"), HasSubstr("cap of 1"))));
}

// What is carried into a block was planned with the greater cap.
TEST(OverLong, CarriedSamplesAreSkippedOrRefusedWhenTheCapShrinks) {
  std::vector<std::uint32_t> lengths(300'000, 50);
  for (std::size_t i = 0; i < lengths.size(); i += 3) lengths[i] = 90;
  const LengthsInMemory source(lengths, "data");
  for (const TooLong too_long : {TooLong::skip, TooLong::refuse}) {
    PlanOptions options{.ranks = 64, .cap = 100, .too_long = too_long};
    EpochPlanner planner(source, options);
    PlannedBlock block;
    ASSERT_TRUE(planner.next_block(block));
    ASSERT_TRUE(planner.next_block(block));
    const PlanState state = planner.state_after(block, 0);
    ASSERT_GT(std::count_if(state.carried.begin(), state.carried.end(),
                            [&](SampleId id) { return lengths[id] == 90; }),
              0);
    options.cap = 50;
    EpochPlanner again(source, options, state);
    if (too_long == TooLong::refuse) {
      EXPECT_THAT([&] { again.next_block(block); },
                  ThrowsMessage<Error>(HasSubstr("90 tokens, over the cap of 50")));
      continue;
    }
    while (again.next_block(block)) {
      for (const SampleId id : block.plan.ids()) ASSERT_EQ(lengths[id], 50U) << "sample " << id << " was cut";
    }
  }
}

TEST(OverLong, PiecesSurviveAStop) {
  std::vector<std::uint32_t> lengths = length_lists(100, 100, 3)[1].lengths;
  for (std::size_t i = 0; i < lengths.size(); i += 7) lengths[i] = 333;
  const LengthsInMemory source(lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 120, .too_long = TooLong::split};
  std::size_t pieces = 0;
  for (const std::uint32_t length : lengths) pieces += (length + 119) / 120;
  for (std::uint64_t stop = 0; stop < 20; ++stop) {
    Seen seen;
    std::uint64_t used = 0;
    EpochPlanner planner(source, options);
    const PlanState state = use(planner, stop, seen, used);
    PlanOptions other = options;
    other.ranks = 3;
    EpochPlanner again(source, other, state);
    use(again, ~std::uint64_t{0}, seen, used);
    expect_once(seen, pieces, fmt::format("stopped after {}", stop));
  }
}

}  // namespace
}  // namespace lockstep::data
