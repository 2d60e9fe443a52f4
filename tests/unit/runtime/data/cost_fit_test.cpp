#include "runtime/data/cost_fit.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace lockstep::data {
namespace {

// The steps of a synthetic machine. If `disturbed`, every tenth step takes much longer.
CostFit measured(double a, double b, double fixed, double noise, bool disturbed, std::size_t steps = 300) {
  std::mt19937 engine(3);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> unit(0.5, 1.5);
  CostFit fit;
  for (std::size_t i = 0; i < steps; ++i) {
    const double tokens = 16000 * unit(engine);
    const double squares = tokens * 800 * unit(engine);
    double seconds = (fixed + a * tokens + b * squares) * (1 + noise * normal(engine));
    if (disturbed && i % 10 == 3) seconds *= 8;
    fit.add(tokens, squares, seconds);
  }
  return fit;
}

TEST(CostFit, FindsTheCostOfTheSteps) {
  const auto fitted = measured(2e-6, 1e-9, 0.01, 0.0, false).fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->cost.a / 2e-6, 1, 1e-6);
  EXPECT_NEAR(fitted->cost.b / 1e-9, 1, 1e-6);
  EXPECT_NEAR(fitted->fixed, 0.01, 1e-7);
  EXPECT_LT(fitted->error, 1e-6);
}

TEST(CostFit, DisturbedStepsHardlyCount) {
  const auto fitted = measured(2e-6, 1e-9, 0.01, 0.01, true).fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->cost.a / 2e-6, 1, 0.15);
  EXPECT_NEAR(fitted->cost.b / 1e-9, 1, 0.15);
  EXPECT_GE(fitted->outliers, 30U);
  EXPECT_LT(fitted->error, 0.03);
  EXPECT_GT(fitted->error_a, 0);
  EXPECT_NEAR(fitted->cost.a, 2e-6, 5 * fitted->error_a);
}

TEST(CostFit, ALinearCostHasNoNegativeQuadraticTerm) {
  const auto fitted = measured(2e-6, 0, 0, 0.02, false).fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_GE(fitted->cost.b, 0);
  EXPECT_GE(fitted->cost.a, 0);
  EXPECT_LT(fitted->cost.b * 800, 0.1 * fitted->cost.a);
}

TEST(CostFit, ReturnsNothingForTooFewSteps) {
  EXPECT_FALSE(measured(1, 1, 0, 0, false, 7).fit().has_value());
}

TEST(CostFit, EqualStepsGiveACostPerToken) {
  CostFit fit;
  for (int i = 0; i < 20; ++i) fit.add(1000, 500000, 0.1);
  const auto fitted = fit.fit();
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->cost.a, 1e-4, 1e-9);
  EXPECT_EQ(fitted->cost.b, 0);
}

TEST(CostFit, IgnoresValuesThatAreNotPositive) {
  CostFit fit;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  fit.add(nan, 1, 1);
  fit.add(1, -1, 1);
  fit.add(1, 1, 0);
  EXPECT_EQ(fit.steps().size(), 0U);
}

TEST(CostFit, ForgetsOldSteps) {
  CostFit fit(16);
  for (int i = 0; i < 20; ++i) fit.add(1000 + i, 500000, 10);
  for (int i = 0; i < 16; ++i) fit.add(1000, 500000, 0.1);
  EXPECT_EQ(fit.steps().size(), 16U);
  EXPECT_NEAR(fit.fit()->cost.a, 1e-4, 1e-9);
}

}  // namespace
}  // namespace lockstep::data
