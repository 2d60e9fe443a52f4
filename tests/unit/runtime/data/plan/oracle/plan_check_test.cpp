// check_plan() must refuse a plan with any mistake. These plans are written by hand, because the planner
// makes no mistakes.
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/error.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"

namespace lockstep::data {
namespace {

constexpr SampleId kPiece = SampleId{1} << kPieceShift;

/// Plans of seven samples. Ranks have two micro-batches, one or none.
struct HandWritten {
  PlanOptions options{.ranks = 2, .cap = 10, .cost = {1, 0}};
  Lengths lengths{.tokens = {6, 4, 5, 5, 3, 7, 2}, .fingerprint = "data"};
  Nested steps = {{{{0}, {1, 2}}, {{3, 4}}}, {{{5}}, {}}, {{}, {{6}}}};

  Plan plan() const {
    Plan made(options, lengths.tokens.size(), "data");
    for (const auto& step : steps) made.append_step(step);
    return made;
  }
};

using Change = std::function<void(HandWritten& plan)>;

TEST(PlanCheck, FindsEachMistakeAndAcceptsThePlanWithoutIt) {
  const Change as_it_is = [](HandWritten&) {};
  const Change padded = [](HandWritten& plan) {
    plan.options.padded = true;
    plan.options.pad_multiple = 1;
    plan.steps = {{{{0}, {2, 3}}, {{1, 4}}}, {{{5}}, {}}, {{}, {{6}}}};
  };
  // Each row alone may be rounded up to the cap.
  const Change rows_alone = [](HandWritten& plan) {
    plan.options.padded = true;
    plan.options.pad_multiple = 6;
    plan.steps = {{{{0}, {1}}, {{2}, {4}}}, {{{5}}, {{3}}}, {{}, {{6}}}};
  };
  const Change equal = [](HandWritten& plan) {
    plan.options.equal_micro_batches = true;
    plan.steps = {{{{0}, {1, 2}}, {{}, {3, 4}}}, {{{5}}, {{}}}, {{{}}, {{6}}}};
  };
  const Change dropped = [](HandWritten& plan) {
    plan.options.tail = Tail::drop;
    plan.steps.pop_back();
  };
  const Change repeated = [](HandWritten& plan) {
    plan.options.tail = Tail::repeat;
    plan.steps[2][0] = {{1}};
  };
  const Change split = [](HandWritten& plan) {
    plan.options.cap = 5;
    plan.options.too_long = TooLong::split;
    plan.lengths.tokens = {5, 12, 1};
    plan.steps = {{{{0}}, {{1}, {1 | 2 * kPiece, 2}}}, {{{1 | kPiece}}, {}}};
  };
  const Change skipped = [](HandWritten& plan) {
    plan.options.cap = 5;
    plan.options.too_long = TooLong::skip;
    plan.lengths.tokens = {5, 12, 1};
    plan.steps = {{{{0}}, {{2}}}};
  };
  struct Mistake {
    Change base, mistake;
    const char* error;
  };
  const std::vector<Mistake> mistakes{
      {as_it_is, [](auto& plan) { plan.lengths.fingerprint = "others"; }, "fingerprint"},
      {as_it_is, [](auto& plan) { plan.steps[0][0][1] = {2}; }, "missing: sample 1 "},
      {as_it_is, [](auto& plan) { plan.steps[1][1] = {{2}}; }, "sample 2 was already in step 0"},
      {as_it_is, [](auto& plan) { plan.steps[1][0] = {{7}}; }, "there is no sample 7"},
      {as_it_is,
       [](auto& plan) {
         plan.steps[0] = {{{0, 2}, {1}}, {{3, 4}}};
       },
       "over the cap of 10"},
      {as_it_is,
       [](auto& plan) {
         plan.steps.insert(plan.steps.begin() + 1, plan.steps[1])[0] = {{}, {}};
       },
       "no samples"},
      {padded, [](auto& plan) { plan.options.pad_multiple = 6; }, "12 tokens, over the cap"},
      {rows_alone,
       [](auto& plan) {
         plan.steps[0][1] = {{2, 4}};
       },
       "12 tokens, over the cap"},
      {equal, [](auto& plan) { plan.steps[2][0] = {}; }, "rank 1 has 1 micro-batches and rank 0 has 0"},
      {dropped, [](auto& plan) { plan.options.tail = Tail::fill; }, "1 samples or pieces are missing"},
      {dropped, [](auto& plan) { plan.steps[0][0].erase(plan.steps[0][0].begin()); }, "2 samples"},
      {repeated, [](auto& plan) { plan.options.tail = Tail::fill; }, "sample 1 was already in step 0"},
      {repeated, [](auto& plan) { plan.steps[1][1] = {{1}}; }, "sample 1 was already in step 0"},
      {split,
       [](auto& plan) {
         plan.steps[1] = {{{1 | 3 * kPiece}}, {}};
       },
       "sample 1 has no piece 3"},
      {split, [](auto& plan) { plan.steps.pop_back(); }, "missing: piece 1 of sample 1"},
      {skipped, [](auto& plan) { plan.steps[0][1] = {{1}}; }, "over the cap of 5"}};
  for (const Mistake& one : mistakes) {
    HandWritten plan;
    one.base(plan);
    EXPECT_NO_THROW(check_plan(plan.plan(), plan.lengths)) << one.error;
    one.mistake(plan);
    EXPECT_THAT([&] { check_plan(plan.plan(), plan.lengths); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(one.error)));
  }
}

TEST(PlanStats, CountTheCostByTheSpeedsInAllStepsButTheLast) {
  HandWritten plan;
  EXPECT_DOUBLE_EQ(stats_of(plan.plan(), plan.lengths.tokens).imbalance_cost, (15 / 11.5 + 2) / 2);
  plan.options.speeds = {3, 1};
  EXPECT_DOUBLE_EQ(stats_of(plan.plan(), plan.lengths.tokens).imbalance_cost,
                   (8 / (23 / 4.0) + 7 / 3.0 * 4 / 7) / 2);
}

}  // namespace
}  // namespace lockstep::data
