// The balance that a plan promises beside that on the clock, for runs whose true cost is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "exporters/report/diagnosis.h"
#include "tests/unit/exporters/planned_run.h"

namespace lockstep::report {
namespace {

using lockstep::testing::MadeUpRun;
using lockstep::testing::planned;
using lockstep::testing::RankStep;
using record::Phase;
using ::testing::HasSubstr;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

Run make(MadeUpRun& made_up, double planned_ratio, const MadeUpRun::Change& change) {
  made_up.also = [planned_ratio](record::Writer& writer, int, int) { writer.set_cost_ratio(planned_ratio); };
  return made_up.make(change);
}

std::optional<Balance> balance_of(const Run& run) {
  return find_balance(run, common_steps(run));
}

TEST(Balance, AnotherCostIsFoundFromTheTimesOfARun) {
  for (const double truth : {256.0, 768.0, 2304.0}) {
    MadeUpRun made_up;
    const report::Run run = make(made_up, 768, planned(768, truth));
    const auto balance = balance_of(run);
    ASSERT_TRUE(balance);
    EXPECT_NEAR(balance->promised, 1, 1e-6);
    EXPECT_EQ(balance->cost_ratio, 768);
    EXPECT_NEAR(balance->fitted_ratio / truth, 1, 0.02);
    EXPECT_EQ(balance->supported, truth != 768);
    EXPECT_NEAR(balance->measured, balance->fitted, 1e-3);
    EXPECT_EQ(balance->measured > 1.03, truth != 768) << balance->measured;
  }
}

TEST(Balance, APlanThatCountsTokensOnlyGetsBothTerms) {
  MadeUpRun made_up;
  const report::Run run = make(made_up, kInfinite, [](RankStep& does, int rank, int step) {
    does.tokens = 990;
    does.squares = 200'000 + 60'000U * static_cast<unsigned>((rank * 7 + step * 5) % 11);
    const double work = 500.0 * 1000 + static_cast<double>(does.squares);
    does.forward = 28 * work / 1e6;
    does.backward = 50 * work / 1e6;
  });
  const auto balance = balance_of(run);
  ASSERT_TRUE(balance && balance->supported);
  const auto advice = diagnose(run).advice;
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_EQ(advice[0].remedy, "Set plan.cost = {500, 1} instead of {1, 0}.");
}

TEST(Balance, NoiseAndASlowRankAreNotTheCosts) {
  const auto noise = [](RankStep& does, int rank, int step) {
    planned(768, 768)(does, rank, step);
    does.slow_down(1 + 0.2 * (((rank * 131 + step * 57) * 2654435761U >> 8U) % 100) / 100.0);
  };
  const auto slow = [](RankStep& does, int rank, int step) {
    planned(768, 768)(does, rank, step);
    does.slow_down(rank == 3 ? 1.2 : 1);
  };
  for (const MadeUpRun::Change& change : {MadeUpRun::Change(noise), MadeUpRun::Change(slow)}) {
    MadeUpRun made_up;
    const report::Run run = make(made_up, 768, change);
    const auto balance = balance_of(run);
    ASSERT_TRUE(balance);
    EXPECT_GT(balance->measured, 1.03);
    EXPECT_FALSE(balance->supported) << balance->fitted << " " << balance->fitted_ratio;
    for (const Advice& advice : diagnose(run).advice) EXPECT_NE(advice.rule, "cost");
  }
}

TEST(Balance, IsNotKnownWithoutAPlanOrWithFewSteps) {
  MadeUpRun without_plan;
  EXPECT_FALSE(balance_of(make(without_plan, 0, planned(768, 2304))));
  MadeUpRun without_lengths;
  EXPECT_FALSE(balance_of(make(without_lengths, 768, {})));
  MadeUpRun few{.steps = 10};
  EXPECT_FALSE(balance_of(make(few, 768, planned(768, 2304))));
  MadeUpRun single{.ranks = 1};
  EXPECT_FALSE(balance_of(make(single, 768, planned(768, 2304))));
}

TEST(Balance, IsALineAndAnObject) {
  MadeUpRun made_up;
  const report::Run run = make(made_up, kInfinite, planned(768, 768));
  const auto balance = balance_of(run);
  ASSERT_TRUE(balance);
  EXPECT_THAT(balance_line(*balance), HasSubstr("times the mean rank's work by the plan"));
  const auto json = balance_json(balance);
  EXPECT_TRUE(json.at("cost_ratio").is_null());
  EXPECT_GT(json.at("promised"), 1.01) << "the ranks' tokens differ";
  EXPECT_LT(json.at("measured"), 1.01);
  EXPECT_TRUE(balance_json(std::nullopt).is_null());
}

}  // namespace
}  // namespace lockstep::report
