#include "runtime/ddp/gradient_average.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// All ranks of a job; only their gradients are added up here.
class GradientAverageTest : public ::testing::Test {
 protected:
  using Counts = std::vector<std::int64_t>;  // of the micro-batches of a rank

  // The result for a gradient of 1 per token. A rank without counts skips.
  double gradient_of_step(const std::vector<Counts>& ranks) {
    while (averages.size() < ranks.size()) averages.emplace_back(static_cast<int>(ranks.size()));
    std::vector<double> gradients;
    std::optional<double> factor;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      double& gradient = gradients.emplace_back(0);
      if (ranks[r].empty()) averages[r].begin(Averaging::undecided, 0);
      for (const std::int64_t count : ranks[r]) {
        averages[r].begin(Averaging::by_count, count);
        EXPECT_EQ(factor.value_or(averages[r].loss_factor()), averages[r].loss_factor());
        factor = averages[r].loss_factor();
        gradient += static_cast<double>(count) * averages[r].loss_factor();
      }
    }
    JobAverage all;
    std::vector<GradientAverage::Step> steps;
    for (GradientAverage& average : averages) {
      const auto& step = steps.emplace_back(average.close_step());
      all.count += step.mine.count;
      if (step.mine.mode == Averaging::by_count) all.by_count = 0;
    }
    double sum = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      steps[r].decide(all);
      averages[r].adopt(all);
      sum += gradients[r];
      EXPECT_EQ(*averages[r].factor(), *averages[0].factor());
      EXPECT_EQ(averages[r].loss_factor(), averages[0].loss_factor());
    }
    return sum * *averages[0].factor();
  }

  std::vector<GradientAverage> averages;
};

TEST_F(GradientAverageTest, MakesTheMeanOverAllRanksAndMicroBatches) {
  EXPECT_EQ(gradient_of_step({{3}, {100, 7, 0, 1000}, {}}), 1);
  EXPECT_EQ(averages[2].mode(), Averaging::by_count) << "the message decides";
  EXPECT_EQ(gradient_of_step({{}, {1}, {}}), 1);
  EXPECT_EQ(gradient_of_step({{64}, {}, {31}}), 1);
  EXPECT_EQ(averages[0].count_of_last_step(), 95);
}

// Backward may add up gradients of all ranks, as that of SyncBatchNorm does.
TEST_F(GradientAverageTest, InTheFirstStepAllRanksHaveTheSameFactorWhateverTheirCounts) {
  for (const std::int64_t count : {0, 4, 1'000'000}) {
    GradientAverage average(4);
    average.begin(Averaging::by_count, count);
    EXPECT_EQ(average.loss_factor(), 1.0 / 1024);
    EXPECT_FALSE(average.agreed());
  }
}

TEST_F(GradientAverageTest, ExpectsAPowerOfTwoNearThePreviousStepOnAllRanks) {
  gradient_of_step({{900}, {100}});
  for (auto& average : averages) {
    EXPECT_TRUE(average.agreed());
    average.begin(Averaging::by_count, 5);
    EXPECT_EQ(average.loss_factor(), 1.0 / 1024);
  }
}

TEST_F(GradientAverageTest, KeepsTheFactorDuringAStep) {
  gradient_of_step({{64}});
  const GradientAverage::Step late = averages[0].close_step();
  for (int i = 0; i < 2; ++i) {
    averages[0].begin(Averaging::by_count, 1'000'000);
    EXPECT_EQ(averages[0].loss_factor(), 1.0 / 64);
    late.decide({.count = 4});
  }
}

TEST_F(GradientAverageTest, GivesZeroForAStepWithoutCountsAndContinues) {
  EXPECT_EQ(gradient_of_step({{}}), 0) << "undecided";
  EXPECT_EQ(gradient_of_step({{0, 0}}), 0);
  EXPECT_EQ(gradient_of_step({{12}}), 1);
  EXPECT_EQ(gradient_of_step({{0}}), 0);
  averages[0].begin(Averaging::by_count, 1);
  EXPECT_EQ(averages[0].loss_factor(), 1.0 / 16) << "12 is the last known number";
}

TEST_F(GradientAverageTest, OverRanksTheFactorIsThatOfTheRanks) {
  GradientAverage average(4);
  average.begin(Averaging::over_ranks, 0);
  *average.rank_factor() = 1.0 / 3;  // inside join
  average.close_step().decide({.over_ranks = 2});
  EXPECT_EQ(*average.factor(), 1.0 / 3);
  average.adopt({.over_ranks = 2});
  EXPECT_EQ(average.loss_factor(), 1);
  EXPECT_TRUE(average.agreed());
}

TEST_F(GradientAverageTest, RefusesAnotherCallThanBefore) {
  GradientAverage over_ranks(2);
  GradientAverage by_count(2);
  over_ranks.begin(Averaging::over_ranks, 0);
  by_count.begin(Averaging::by_count, 3);
  EXPECT_THAT([&] { over_ranks.begin(Averaging::by_count, 3); },
              ThrowsMessage<UsageError>(HasSubstr("call loss.backward() for every loss")));
  EXPECT_THAT([&] { by_count.begin(Averaging::over_ranks, 0); },
              ThrowsMessage<UsageError>(HasSubstr("call ddp.backward(loss_sum, count) for every loss")));
  GradientAverage skipped(2);  // in the first step
  skipped.begin(Averaging::undecided, 0);
  skipped.adopt({.over_ranks = 1});
  EXPECT_THROW(skipped.begin(Averaging::by_count, 3), UsageError);
}

TEST_F(GradientAverageTest, RefusesRanksThatCallDifferently) {
  GradientAverage average(4);
  average.begin(Averaging::over_ranks, 0);
  EXPECT_THAT(
      [&] { average.adopt({.count = 5, .over_ranks = 1, .by_count = 3}); },
      ThrowsMessage<UsageError>(HasSubstr(
          "rank 1 called loss.backward(), which averages over ranks, but rank 3 called ddp.backward")));
}

TEST_F(GradientAverageTest, RefusesANegativeCount) {
  GradientAverage average(1);
  EXPECT_THROW(average.begin(Averaging::by_count, -1), UsageError);
  average.begin(Averaging::over_ranks, 0);
}

}  // namespace
}  // namespace lockstep::ddp
