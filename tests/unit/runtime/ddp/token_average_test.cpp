#include "runtime/ddp/token_average.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/error.h"
#include "runtime/comm/single/communicator.h"

namespace lockstep::ddp {
namespace {

class TokenAverageTest : public ::testing::Test {
 protected:
  // The result for a gradient of 1 per token, over a step of these micro-batches.
  double gradient_of_step(const std::vector<std::int64_t>& micro_batches) {
    double gradient = 0;
    for (const std::int64_t tokens : micro_batches) {
      average.add(tokens);
      gradient += static_cast<double>(tokens) * average.loss_factor();
    }
    const auto count = average.close_step();
    count.set_sum(count.mine);
    return gradient * *average.gradient_factor();
  }

  std::unique_ptr<comm::Communicator> alone = comm::make_single_communicator("here");
  TokenAverage average{*alone};
};

TEST_F(TokenAverageTest, MakesTheMeanOverAllMicroBatches) {
  EXPECT_DOUBLE_EQ(gradient_of_step({3}), 1);
  EXPECT_DOUBLE_EQ(gradient_of_step({100, 7, 0, 1000}), 1);
  EXPECT_DOUBLE_EQ(gradient_of_step({1}), 1);
  EXPECT_EQ(average.tokens_of_last_step(), 1);
}

TEST_F(TokenAverageTest, ExpectsAPowerOfTwoNearThePreviousStep) {
  gradient_of_step({1000});
  average.add(5);
  EXPECT_EQ(average.loss_factor(), 1.0 / 1024);
}

TEST_F(TokenAverageTest, KeepsTheFactorDuringAStep) {
  gradient_of_step({64});
  average.add(1'000'000);
  EXPECT_EQ(average.loss_factor(), 1.0 / 64);
  average.add(1'000'000);
  EXPECT_EQ(average.loss_factor(), 1.0 / 64);
}

TEST_F(TokenAverageTest, GivesZeroForAStepWithoutTokensAndContinues) {
  EXPECT_EQ(gradient_of_step({0, 0}), 0);
  EXPECT_DOUBLE_EQ(gradient_of_step({12}), 1);
  EXPECT_EQ(gradient_of_step({0}), 0);
  average.add(1);
  EXPECT_EQ(average.loss_factor(), 1.0 / 16) << "12 is the last known number";
}

TEST_F(TokenAverageTest, RefusesANegativeNumber) {
  EXPECT_THROW(average.add(-1), UsageError);
}

}  // namespace
}  // namespace lockstep::ddp
