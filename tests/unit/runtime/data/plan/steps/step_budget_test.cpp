// Tests of the samples of a step: consecutive samples of the epoch's order within the token budget, or
// stretched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/step_packer.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"
#include "tests/unit/runtime/data/plan/random_options.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;

// The samples and pieces in the epoch's order, without skipped ones.
std::vector<SampleId> order_of(const std::vector<std::uint32_t>& lengths, const PlanOptions& options) {
  const LengthsInMemory source(lengths, "data");
  const EpochOrder order(lengths.size(), options.order, options.seed, options.epoch);
  std::vector<SampleId> ids;
  for (std::size_t block = 0; block < order.blocks(); ++block) {
    const BlockSamples samples = read_block_for_plan(source, order, block, options);
    for (const Item& item : samples.items) {
      if (item.length > 0) ids.push_back(samples.id_of(item.index));
    }
  }
  return ids;
}

// The totals of some consecutive samples.
struct Totals {
  std::uint64_t tokens = 0;
  double cost = 0;
  double greatest = 0;

  void add(std::uint64_t length, const PlanOptions& options) {
    tokens += length;
    cost += options.cost.of(length);
    greatest = std::max(greatest, options.cost.of(length));
  }
};

// Whether a sample takes the fastest rank longer than an equal share of all takes each rank.
bool outweighs(double sample, double all, const PlanOptions& options) {
  if (options.speeds.empty()) return sample * options.ranks > all;
  const double speeds = std::accumulate(options.speeds.begin(), options.speeds.end(), 0.0);
  return sample * speeds > all * *std::max_element(options.speeds.begin(), options.speeds.end());
}

// A step's tokens are a promise: no step exceeds them, and a step with space for one of the next samples took it.
void expect_promise_kept(const std::vector<std::uint32_t>& lengths, const PlanOptions& options,
                         const std::string& name) {
  constexpr std::size_t look_ahead = 64;
  const Plan plan = make_plan(lengths, options);
  std::vector<SampleId> unused = order_of(lengths, options);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const std::string what =
        fmt::format("{}, step {} of {}: {}", name, step, plan.steps(), describe(options));
    const auto samples = plan.step_samples(step);
    const std::set<SampleId> taken(samples.begin(), samples.end());
    ASSERT_TRUE(taken.contains(unused.front())) << what << ": the first sample waits";
    std::uint64_t tokens = 0;
    for (const SampleId id : samples) tokens += tokens_of(id, lengths, options);
    if (samples.size() > 1) {
      ASSERT_LE(tokens, options.step_tokens) << what;
    }
    std::size_t seen = 0;
    for (auto it = unused.begin(); it != unused.end() && seen < look_ahead / 2; ++it) {
      if (taken.contains(*it)) continue;
      ++seen;
      if (static_cast<double>(tokens) + 1 < 0.99 * static_cast<double>(options.step_tokens)) {
        ASSERT_GT(tokens + tokens_of(*it, lengths, options), options.step_tokens) << what;
      }
    }
    ASSERT_EQ(std::erase_if(unused, [&](SampleId id) { return taken.contains(id); }), samples.size()) << what;
  }
  ASSERT_TRUE(unused.empty()) << name << ": " << describe(options);
}

void expect_budget_kept(const std::vector<std::uint32_t>& lengths, const PlanOptions& options,
                        const std::string& name) {
  const double stretch = step_stretch(options);
  const bool may_stretch = stretch > 1 && options.ranks > 1;
  if (options.step_tokens > 0 && !may_stretch) return expect_promise_kept(lengths, options, name);
  const Plan plan = make_plan(lengths, options);
  const std::vector<SampleId> order = order_of(lengths, options);
  const std::uint64_t budget = step_budget(options);
  const double max_tokens = stretch * static_cast<double>(budget);
  std::size_t at = 0;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const std::string what =
        fmt::format("{}, step {} of {}: {}", name, step, plan.steps(), describe(options));
    const std::size_t count = plan.step_samples(step).size();
    ASSERT_LE(at + count, order.size()) << what;
    const auto run = std::span(order).subspan(at, count);
    std::vector<SampleId> expected(run.begin(), run.end());
    std::vector<SampleId> samples(plan.step_samples(step).begin(), plan.step_samples(step).end());
    std::ranges::sort(expected);
    std::ranges::sort(samples);
    ASSERT_TRUE(samples == expected) << what << ": the samples are not consecutive";
    at += count;
    Totals taken;
    std::uint64_t before_last = 0;
    for (const SampleId id : run) {
      before_last = taken.tokens;
      taken.add(tokens_of(id, lengths, options), options);
    }
    if (count == 1) before_last = 0;
    // A single sample may be longer than the budget. A step that stretches ends with the sample that
    // reaches the stretch.
    if (!may_stretch && count > 1) {
      const bool joined_rest = at == order.size();  // a rest of less than half a step, within the stretch
      const double max_budgets = joined_rest ? std::min(1.5, stretch) : 1;
      ASSERT_LE(static_cast<double>(taken.tokens), max_budgets * static_cast<double>(budget)) << what;
    }
    if (count > 1) {
      ASSERT_LT(static_cast<double>(before_last), max_tokens) << what;
    }
    if (at == order.size()) break;
    const std::uint64_t next = tokens_of(order[at], lengths, options);
    if (!may_stretch) {
      ASSERT_GT(taken.tokens + next, budget) << what << ": the next sample would fit";
      continue;
    }
    // The last step's samples could not have joined this step; the check at the end of the epoch covers that.
    if (taken.tokens + next <= budget) {
      ASSERT_GE(static_cast<double>(taken.tokens), 0.5 * static_cast<double>(budget)) << what;
      const double full = taken.cost * static_cast<double>(budget) / static_cast<double>(taken.tokens);
      ASSERT_TRUE(outweighs(options.cost.of(next), full * (1 - 1e-9), options))
          << what << ": the next sample would fit";
    }
    if (static_cast<double>(taken.tokens) < max_tokens) {
      ASSERT_FALSE(outweighs(taken.greatest, taken.cost * (1 + 1e-9), options))
          << what << ": a step with an outlier did not stretch";
    }
  }
  ASSERT_EQ(at, order.size()) << name << ": " << describe(options);
}

TEST(StepBudget, IsKeptByEveryStepForAnyLengthsAndOptions) {
  RandomOptions random(17);
  for (unsigned seed = 0; seed < 150; ++seed) {
    const auto longest = static_cast<std::uint32_t>(random.pick(1, 2000));
    for (const LengthList& list :
         length_lists(static_cast<std::size_t>(random.pick(2, 600)), longest, seed)) {
      expect_budget_kept(list.lengths, random.next(longest, 70), fmt::format("{}, list {}", list.name, seed));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(StepBudget, IsKeptByStepsWithSamplesOfTwoBlocks) {
  constexpr std::size_t block_samples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
  const std::vector<LengthList> lists = length_lists(block_samples + 30'000, 2000, 2);
  for (const std::size_t list : {1U, 2U}) {
    for (const double stretch : {1.0, 1.5}) {
      expect_budget_kept(
          lists[list].lengths,
          {.ranks = 8, .cap = 4096, .accumulate = 30, .step_stretch = stretch, .cost = {3000, 1}},
          lists[list].name);
    }
  }
}

// The tokens of each step, all ranks together.
std::vector<std::uint64_t> tokens_of_steps(const Plan& plan, const std::vector<std::uint32_t>& lengths) {
  std::vector<std::uint64_t> tokens;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    tokens.push_back(0);
    for (const SampleId id : plan.step_samples(step)) tokens.back() += lengths[id];
  }
  return tokens;
}

TEST(StepTokens, AreTheSameOnAnyNumberOfRanksAndNearlyFull) {
  std::vector<std::uint32_t> lengths;
  std::mt19937 random(1);
  for (int i = 0; i < 600; ++i) lengths.push_back(64 + random() % 448);
  std::vector<std::uint64_t> on_one_rank;
  for (const int ranks : {1, 2, 3, 4, 16}) {
    const Plan plan =
        make_plan(lengths, {.ranks = ranks, .cap = 512, .step_tokens = 1024, .cost = {3000, 1}});
    auto tokens = tokens_of_steps(plan, lengths);
    EXPECT_LE(*std::ranges::max_element(tokens), 1024U) << ranks;
    if (ranks == 1) on_one_rank = tokens;
    EXPECT_EQ(tokens, on_one_rank) << ranks << " ranks";
    tokens.pop_back();
    const double mean =
        std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(tokens.size());
    EXPECT_GE(mean, 0.95 * 1024) << ranks;
  }
}

TEST(StepTokens, AreComparedWithWhatTheStepsHold) {
  const std::vector<std::uint32_t> lengths = {60, 30, 40, 35, 5};
  const Plan plan =
      make_plan(lengths, {.ranks = 2, .cap = 60, .step_tokens = 100, .order = Order::sequential});
  EXPECT_EQ(describe_step_sizes(plan, lengths),
            "steps hold 0.95 of the 100 tokens of step_tokens on average, and at most 0.95 (1 step)");
}

TEST(StepTokens, WithAStretchMayBeExceeded) {
  EXPECT_EQ(step_stretch({}), 1.5);
  EXPECT_EQ(step_stretch({.step_tokens = 100}), 1);
  EXPECT_EQ(step_stretch({.step_tokens = 100, .step_stretch = 2}), 2);
}

TEST(StepTokens, OfARunThatResumesAtTheEndOfABlockHoldEachSampleOnce) {
  constexpr std::size_t block_samples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
  std::vector<std::uint32_t> lengths;
  std::mt19937 random(2);
  for (std::size_t i = 0; i < block_samples + 500; ++i) lengths.push_back(1 + random() % 400);
  const LengthsInMemory source(lengths, "data");
  const PlanOptions options{.ranks = 2, .cap = 512, .step_tokens = 1000};
  EpochPlanner planner(source, options);
  std::vector<PlannedBlock> blocks(1);
  while (planner.next_block(blocks.back())) blocks.emplace_back();
  const PlannedBlock& first = blocks.front();
  std::size_t with_samples_ahead = 0;
  for (std::size_t steps = first.plan.steps() - 3; steps <= first.plan.steps(); ++steps) {
    const PlanState state = state_after(first, steps);
    with_samples_ahead += state.position.ahead.empty() ? 0 : 1;
    EpochPlanner resumed(source, options, nlohmann::json(state).get<PlanState>());
    std::vector<SampleId> ids;
    for (std::size_t step = 0; step < steps; ++step) {
      const auto samples = first.plan.step_samples(step);
      ids.insert(ids.end(), samples.begin(), samples.end());
    }
    for (PlannedBlock block; resumed.next_block(block);) {
      const auto samples = block.plan.sample_ids();
      ids.insert(ids.end(), samples.begin(), samples.end());
    }
    std::ranges::sort(ids);
    ASSERT_EQ(ids.size(), lengths.size()) << steps;
    for (std::size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], i) << steps;
  }
  EXPECT_GT(with_samples_ahead, 0U) << "the lengths do not test what they should";
}

TEST(StepBudget, IsByDefaultAShareOfTheMicroBatchesCapacity) {
  EXPECT_EQ(step_budget({.ranks = 4, .cap = 1000, .accumulate = 2}), 7600U);
  EXPECT_EQ(step_budget({.ranks = 4, .cap = 1000, .accumulate = 2, .step_tokens = 12}), 12U);
  EXPECT_EQ(step_budget({.cap = 1}), 1U);
}

// Takes steps from items of these lengths and returns the number of items of each step.
std::vector<std::size_t> counts_of(StepPacker& packer, const std::vector<std::uint32_t>& lengths) {
  std::vector<Item> pool;
  for (const std::uint32_t length : lengths)
    pool.push_back({static_cast<std::uint32_t>(pool.size()), length});
  std::vector<std::size_t> counts;
  for (std::size_t at = 0; at < pool.size(); at += counts.back()) {
    counts.push_back(packer.take(std::span(pool).subspan(at), true));
  }
  return counts;
}

std::vector<std::size_t> counts_of(const std::vector<std::uint32_t>& lengths, const PlanOptions& options) {
  StepPacker packer(options);
  return counts_of(packer, lengths);
}

TEST(StepPacker, AnOutlierTakesMoreSamplesUpToTheStretch) {
  PlanOptions options{.ranks = 4, .cap = 1000, .step_tokens = 1000, .step_stretch = 1.5, .cost = {0, 1}};
  // 700 squared is more than a quarter of what 1000 tokens of such samples cost.
  std::vector<std::uint32_t> lengths(40, 100);
  lengths[0] = 700;
  EXPECT_EQ(counts_of(lengths, options)[0], 9U) << "700 + 8 x 100 reach 1.5 x 1000";
  options.step_stretch = 2;
  EXPECT_EQ(counts_of(lengths, options)[0], 14U);
  options.step_stretch = 1;
  EXPECT_EQ(counts_of(lengths, options)[0], 4U);
  lengths.resize(400, 100);
  options.cost = {1, 0};
  options.step_stretch = 10;
  EXPECT_EQ(counts_of(lengths, options)[0], 22U) << "3 x 700 tokens for the other ranks are enough";
}

TEST(StepPacker, AFasterRankCanTakeALargerOutlier) {
  std::vector<std::uint32_t> lengths(40, 100);
  lengths[0] = 300;
  PlanOptions options{.ranks = 2, .cap = 1000, .step_tokens = 400, .step_stretch = 2};
  EXPECT_EQ(counts_of(lengths, options)[0], 4U) << "300 + 300 tokens";
  options.speeds = {3, 1};
  EXPECT_EQ(counts_of(lengths, options)[0], 2U) << "300 + 100 tokens";
}

TEST(StepPacker, UnevenRanksTakeSamplesThatCostNoTime) {
  // With three samples on two ranks, a fourth sample costs no time.
  EXPECT_THAT(counts_of({100, 100, 100, 100, 100, 100, 100, 100},
                        {.ranks = 2, .cap = 400, .step_tokens = 300, .step_stretch = 1.5}),
              ElementsAre(4, 4));
  EXPECT_THAT(counts_of({100, 100, 100, 100, 100, 100, 100, 100},
                        {.ranks = 2, .cap = 400, .step_tokens = 300, .step_stretch = 1}),
              ElementsAre(3, 3, 2));
}

TEST(StepPacker, NeedsTheSampleAfterAStep) {
  const std::vector<Item> pool = {{0, 50}, {1, 50}, {2, 1}};
  StepPacker packer({.ranks = 2, .cap = 100, .step_tokens = 100});
  EXPECT_EQ(packer.take(std::span(pool).first(2), false), 0U);
  EXPECT_EQ(packer.take(pool, false), 2U);
  EXPECT_EQ(packer.take(std::span(pool).first(2), true), 2U);
}

TEST(StepPacker, ItemsOfLengthZeroBelongToAStepAndAreNotPacked) {
  const std::vector<Item> pool = {{0, 0}, {1, 50}, {2, 0}, {3, 50}, {4, 0}, {5, 9}};
  StepPacker packer({.ranks = 1, .cap = 100, .step_tokens = 100});
  EXPECT_EQ(packer.take(pool, false), 5U);
  EXPECT_EQ(packer.samples(), 2U);
  EXPECT_THAT(packer.pack(0).indices, testing::UnorderedElementsAre(1, 3));
}

TEST(StepPacker, TheFullestMicroBatchOfARankComesLast) {
  RandomOptions random(3);
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<std::uint32_t> lengths = length_lists(400, 100, seed)[0].lengths;
    PlanOptions options{.ranks = 3, .cap = 200, .accumulate = 4, .seed = seed};
    options.equal_micro_batches = seed % 2 == 0;
    const Plan plan = make_plan(lengths, options);
    for (std::size_t step = 0; step < plan.steps(); ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        std::uint64_t fullest = 0;
        std::uint64_t last = 0;
        for (std::size_t m = 0; m < plan.micro_batches(step, rank); ++m) {
          last = memory_of(plan.micro_batch(step, rank, m), lengths, options);
          fullest = std::max(fullest, last);
        }
        EXPECT_GT(last, fullest - 100) << "step " << step << ", rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
