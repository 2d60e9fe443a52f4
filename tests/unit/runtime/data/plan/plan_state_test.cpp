#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/plan_run.h"
#include "tests/unit/runtime/data/plan/random_options.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBlockSamples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;

// Random options with the same order as `first`.
PlanOptions on_other_ranks(RandomOptions& random, const PlanOptions& first, std::uint32_t longest,
                           int max_ranks) {
  PlanOptions other = random.next(longest, max_ranks);
  other.seed = first.seed;
  other.epoch = first.epoch;
  other.order = first.order;
  other.too_long = first.too_long;
  if (first.too_long != TooLong::refuse || other.cap < longest) other.cap = first.cap;
  return other;
}

TEST(PlanState, ResumesAfterEveryStepWithTheSameStepsOrOnOtherRanksWithEachSampleOnce) {
  RandomOptions random(5);
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const LengthList& list : length_lists(static_cast<std::size_t>(random.pick(2, 80)), 100, seed)) {
      const LengthsInMemory source(list.lengths, "data");
      const PlanOptions options = random.next(100, 6);
      TrainingRun whole;
      EpochPlanner planner(source, options);
      use(planner, kAllSteps, whole);
      for (std::uint64_t stop = 0; stop <= whole.steps.size(); ++stop) {
        const std::string what =
            fmt::format("{}, list {}, stopped after {}: {}", list.name, seed, stop, describe(options));
        TrainingRun first;
        EpochPlanner stopped(source, options);
        use(stopped, stop, first);
        ASSERT_EQ(first.state.steps, stop) << what;
        TrainingRun same = first;
        EpochPlanner again(source, options, first.state);
        use(again, kAllSteps, same);
        ASSERT_EQ(same.steps, whole.steps) << what;
        ASSERT_EQ(same.state, whole.state) << what;
        for (int ranks = 1; ranks <= 9; ++ranks) {
          PlanOptions other = on_other_ranks(random, options, 100, 1);
          other.ranks = ranks;
          other.speeds = {};
          TrainingRun second = first;
          EpochPlanner resumed(source, other, first.state);
          use(resumed, kAllSteps, second);
          ASSERT_TRUE(second.uses == each_once(list.lengths, options))
              << what << ", then: " << describe(other);
        }
      }
    }
  }
}

TEST(PlanState, AnEpochMayStopAfterEveryStepAndResumeOnAnotherNumberOfRanks) {
  RandomOptions random(6);
  for (unsigned seed = 0; seed < 30; ++seed) {
    for (const LengthList& list : length_lists(static_cast<std::size_t>(random.pick(2, 300)), 100, seed)) {
      const LengthsInMemory source(list.lengths, "data");
      const PlanOptions first = random.next(100, 9);
      TrainingRun run;
      run.state = EpochPlanner(source, first).state();
      for (bool more = true; more;) {
        const std::size_t before = run.steps.size();
        EpochPlanner planner(source, on_other_ranks(random, first, 100, 9), run.state);
        use(planner, 1, run);
        more = run.steps.size() > before;
        ASSERT_LE(run.steps.size(), list.lengths.size() * 100) << "it does not end";
      }
      EXPECT_TRUE(run.uses == each_once(list.lengths, first))
          << list.name << ", list " << seed << ": " << describe(first);
      EXPECT_EQ(run.state.steps, run.steps.size());
    }
  }
}

// Stops near the ends of blocks, where a step has samples of two blocks.
TEST(PlanState, ResumesWithTheSameStepsAtTheEndsOfBlocks) {
  for (const TooLong too_long : {TooLong::refuse, TooLong::split, TooLong::skip}) {
    const std::vector<std::uint32_t> lengths = length_lists(2 * kBlockSamples + 9000, 500, 4)[1].lengths;
    const LengthsInMemory source(lengths, "data");
    PlanOptions options{.ranks = 16, .cap = 16384, .accumulate = 4, .cost = {3000, 1}, .too_long = too_long};
    if (too_long != TooLong::refuse) options.cap = 150;
    if (too_long != TooLong::refuse) options.accumulate = 500;
    const Plan whole = make_plan(lengths, options, "data");
    std::vector<PlanState> states;
    std::vector<std::uint64_t> stops;
    EpochPlanner planner(source, options);
    for (PlannedBlock block; planner.next_block(block);) {
      if (!states.empty()) stops.insert(stops.end(), {states.size(), states.size() + 1});
      for (std::size_t step = 1; step <= block.plan.steps(); ++step)
        states.push_back(state_after(block, step));
      stops.insert(stops.end(), {states.size() - 2, states.size() - 1});
    }
    ASSERT_EQ(states.size(), whole.steps());
    EXPECT_GE(stops.size(), 8U);
    for (const std::uint64_t stop : stops) {
      const std::string what =
          fmt::format("{}, stopped after {} of {}", name_of(too_long), stop, states.size());
      const PlanState state = through_text(states[stop - 1]);
      EXPECT_EQ(state.steps, stop);
      Plan rest(options, lengths.size(), "data");
      EpochPlanner again(source, options, state);
      for (PlannedBlock block; again.next_block(block);) rest.append(block.plan);
      EXPECT_TRUE(nested(rest) == nested(whole, stop)) << what;
      PlanOptions other = options;
      other.ranks = 5;
      Plan fewer(other, lengths.size(), "data");
      EpochPlanner resumed(source, other, state);
      for (PlannedBlock block; resumed.next_block(block);) fewer.append(block.plan);
      std::vector<SampleId> expected(rest.sample_ids().begin(), rest.sample_ids().end());
      std::vector<SampleId> ids(fewer.sample_ids().begin(), fewer.sample_ids().end());
      std::ranges::sort(expected);
      std::ranges::sort(ids);
      EXPECT_TRUE(ids == expected) << what << ", on 5 ranks";
    }
  }
}

TEST(PlanState, ResumesWithTheSameStepsForOtherTails) {
  RandomOptions random(8);
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const Tail tail : {Tail::drop, Tail::repeat}) {
      const LengthList list = length_lists(static_cast<std::size_t>(random.pick(2, 60)), 100, seed)[seed % 6];
      const LengthsInMemory source(list.lengths, "data");
      PlanOptions options = random.next(100, 12);
      options.tail = tail;
      TrainingRun whole;
      EpochPlanner planner(source, options);
      use(planner, kAllSteps, whole);
      for (std::uint64_t stop = 0; stop <= whole.steps.size(); ++stop) {
        TrainingRun run;
        EpochPlanner stopped(source, options);
        use(stopped, stop, run);
        EpochPlanner again(source, options, run.state);
        use(again, kAllSteps, run);
        EXPECT_EQ(run.steps, whole.steps)
            << list.name << ", stopped after " << stop << ": " << describe(options);
      }
    }
  }
}

TEST(PlanState, IsSmallForLargeData) {
  const std::vector<std::uint32_t> lengths(1'000'000, 100);
  const LengthsInMemory source(lengths, "data");
  EpochPlanner planner(source, {.ranks = 2, .cap = 16384});
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  EXPECT_LT(nlohmann::json(state_after(block, 100)).dump().size(), 300U);
}

class PlanStateRefused : public testing::Test {
 protected:
  PlanStateRefused() : lengths_(1000, 10), source_(lengths_, "these") {
    EpochPlanner planner(source_, options_);
    PlannedBlock block;
    EXPECT_TRUE(planner.next_block(block));
    state_ = state_after(block, 3);
    EXPECT_THROW(state_after(block, block.plan.steps() + 1), UsageError);
  }

  std::vector<std::uint32_t> lengths_;
  LengthsInMemory source_;
  PlanOptions options_{.ranks = 2, .cap = 100};
  PlanState state_;
};

TEST_F(PlanStateRefused, ForOtherDataOrAnotherOrderWithTheDifference) {
  const LengthsInMemory others(lengths_, "others");
  EXPECT_THAT([&] { EpochPlanner(others, options_, state_); },
              ThrowsMessage<Error>(AllOf(HasSubstr("other data"), HasSubstr("these"), HasSubstr("others"))));
  PlanOptions other = options_;
  const auto refused = [&] {
    EXPECT_THAT([&] { EpochPlanner(source_, other, state_); },
                ThrowsMessage<Error>(AllOf(HasSubstr("another order"), HasSubstr("seed"))));
    other = options_;
  };
  other.seed = 1;
  refused();
  other.epoch = 1;
  refused();
  other.order = Order::sequential;
  refused();
  for (const TooLong too_long : {TooLong::truncate, TooLong::skip, TooLong::split}) {
    other.too_long = too_long;
    refused();
  }
}

// The places of pieces in the order depend on the cap.
TEST_F(PlanStateRefused, ForAnotherCapOnlyIfSamplesAreSplit) {
  for (const TooLong too_long : {TooLong::refuse, TooLong::truncate, TooLong::skip, TooLong::split}) {
    PlanOptions options = options_;
    options.too_long = too_long;
    const PlanState state = EpochPlanner(source_, options).state();
    options.cap = 101;
    if (too_long == TooLong::split) {
      EXPECT_THROW(EpochPlanner(source_, options, state), Error);
    } else {
      EXPECT_NO_THROW(EpochPlanner(source_, options, state)) << name_of(too_long);
    }
  }
}

TEST_F(PlanStateRefused, ForAPositionOutsideTheEpoch) {
  const auto refused = [&](const PlanPosition& position, const std::string& why) {
    PlanState state = state_;
    state.position = position;
    EXPECT_THAT([&] { EpochPlanner(source_, options_, state); },
                ThrowsMessage<Error>(AllOf(HasSubstr("cannot resume"), HasSubstr(why))));
  };
  refused({.block = 0, .used = 1001}, "1001 items of block 0, which has 1000");
  refused({.block = 1, .used = 1}, "the number of blocks is 1");
  refused({.block = 2, .used = 0}, "the number of blocks is 1");
  refused({.block = 0, .used = 0, .mixture = MixturePosition{}}, "belongs to a mixture");
  refused({.block = 0, .used = 990, .ahead = {3, 10}}, "10 places after its position, but only 10 are left");
  refused({.block = 1, .used = 0, .ahead = {0}}, "the number of blocks is 1");
  PlanState end = state_;
  for (const PlanPosition& position :
       {PlanPosition{.block = 1, .used = 0}, PlanPosition{.block = 0, .used = 1000}}) {
    end.position = position;
    EpochPlanner over(source_, options_, end);
    PlannedBlock block;
    EXPECT_FALSE(over.next_block(block));
  }
}

TEST_F(PlanStateRefused, ForDamagedTextWithTheNameOfTheMember) {
  PlanState with_mixture = state_;
  with_mixture.position.mixture = {.drawn = {1}, .piece = {0}, .tokens = {5}, .waiting = {7}};
  with_mixture.position.ahead = {2, 7};
  const nlohmann::json good = with_mixture;
  EXPECT_EQ(good.get<PlanState>(), with_mixture);
  const auto refused = [](const nlohmann::json& damaged, const std::string& why) {
    EXPECT_THAT([&] { (void)damaged.get<PlanState>(); },
                ThrowsMessage<Error>(AllOf(HasSubstr("planner's state"), HasSubstr(why))));
  };
  for (const char* name : {"version", "data", "order", "steps", "block", "used"}) {
    nlohmann::json damaged = good;
    damaged.erase(name);
    refused(damaged, fmt::format("\"{}\" is missing", name));
    damaged[name] = nlohmann::json::array({"x"});
    refused(damaged, name);
  }
  for (const char* name : {"steps", "block", "used"}) {
    nlohmann::json damaged = good;
    damaged[name] = -1;
    refused(damaged, fmt::format("\"{}\" must be a whole number of at least 0, not -1", name));
  }
  for (const char* name : {"drawn", "piece", "tokens"}) {
    nlohmann::json damaged = good;
    damaged["mixture"].erase(name);
    refused(damaged, fmt::format("\"{}\" is missing", name));
    damaged["mixture"][name] = {1.5};
    refused(damaged, fmt::format("\"{}\" must be a whole number of at least 0, not 1.5", name));
  }
  refused(nlohmann::json::array(), "not a JSON object");
}

TEST_F(PlanStateRefused, ForAnotherVersionWithWhatToDo) {
  nlohmann::json other = state_;
  other["version"] = 2;
  EXPECT_THAT([&] { (void)other.get<PlanState>(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("version 2"), HasSubstr("reads version 3"))));
}

TEST(OverLong, IsRefusedIfItHasTooManyPieces) {
  const PlanOptions options{.cap = 1, .too_long = TooLong::split};
  const Plan plan = make_plan(std::vector<std::uint32_t>{2, 65536}, options);
  EXPECT_EQ(stats_of(plan, std::vector<std::uint32_t>{2, 65536}).dropped, 0U);
  EXPECT_THAT(
      [&] {
        make_plan(std::vector<std::uint32_t>{2, 65537}, options);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("sample 1 "), HasSubstr("65537"), HasSubstr("cap of 1"))));
}

// The epoch is resumed with another cap.
TEST(OverLong, RemainingSamplesAreSkippedOrRefusedWithASmallerCap) {
  std::vector<std::uint32_t> lengths(300, 50);
  for (std::size_t i = 0; i < lengths.size(); i += 3) lengths[i] = 90;
  const LengthsInMemory source(lengths, "data");
  for (const TooLong too_long : {TooLong::skip, TooLong::refuse}) {
    PlanOptions options{.ranks = 4, .cap = 100, .too_long = too_long};
    TrainingRun run;
    EpochPlanner planner(source, options);
    use(planner, 5, run);
    options.cap = 50;
    if (too_long == TooLong::refuse) {
      EXPECT_THAT([&] { EpochPlanner(source, options, run.state); },
                  ThrowsMessage<Error>(HasSubstr("90 tokens, over the cap of 50")));
      continue;
    }
    EpochPlanner again(source, options, run.state);
    TrainingRun rest;
    use(again, kAllSteps, rest);
    for (const auto& [id, times] : rest.uses) ASSERT_EQ(lengths[id], 50U) << "sample " << id << " was cut";
    for (SampleId id = 0; id < lengths.size(); ++id) {
      if (lengths[id] == 50) {
        ASSERT_EQ(run.uses[id] + rest.uses[id], 1) << "sample " << id;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
