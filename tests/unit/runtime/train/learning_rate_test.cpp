// The schedules give the learning rates that torch.optim.lr_scheduler of PyTorch 1.13 gives.
#include "runtime/train/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/error.h"

namespace lockstep {
namespace {

using Expected = std::map<std::int64_t, double>;

void expect_factors(const schedule::Schedule& schedule, const Expected& expected) {
  for (const auto& [step, factor] : expected) EXPECT_NEAR(schedule(step), factor, 1e-12) << "step " << step;
}

torch::optim::SGD two_groups() {
  const auto options = [](double lr) { return std::make_unique<torch::optim::SGDOptions>(lr); };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(2, torch::requires_grad())}, options(1.0));
  groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(3, torch::requires_grad())}, options(0.1));
  return torch::optim::SGD(groups, torch::optim::SGDOptions(1.0));
}

TEST(LearningRate, LinearMatchesLinearLR) {
  expect_factors(schedule::linear(0.1, 1, 10), {{0, 0.1}, {3, 0.37}, {10, 1}, {15, 1}});
}

TEST(LearningRate, CosineMatchesCosineAnnealingLR) {
  expect_factors(
      schedule::cosine(100, 0.05),
      {{0, 1}, {25, 0.8608757210636102}, {50, 0.525}, {99, 0.05023438382627749}, {100, 0.05}, {200, 0.05}});
}

TEST(LearningRate, MultiStepMatchesMultiStepLR) {
  expect_factors(schedule::multi_step({10, 20}, 0.5), {{9, 1}, {10, 0.5}, {20, 0.25}, {30, 0.25}});
}

TEST(LearningRate, OneCycleMatchesOneCycleLR) {
  expect_factors(schedule::one_cycle(100), {{0, 0.04},
                                            {10, 0.29516394846410077},
                                            {28, 0.9971862194340926},
                                            {29, 1},
                                            {30, 0.9994965352845243},
                                            {60, 0.5892800902855287},
                                            {99, 4e-06},
                                            {500, 4e-06}});
  // OneCycleLR(max_lr=1, total_steps=100, div_factor=10, final_div_factor=100)
  expect_factors(schedule::one_cycle(100, {.div_factor = 10, .final_div_factor = 100}),
                 {{0, 0.1}, {29, 1}, {99, 0.001}});
}

TEST(LearningRate, SequenceMatchesSequentialLR) {
  expect_factors(schedule::sequence({{schedule::linear(0.01, 1, 10), 10}, {schedule::cosine(40)}}),
                 {{0, 0.01},
                  {5, 0.505},
                  {9, 0.901},
                  {10, 1},
                  {11, 0.998458666866564},
                  {30, 0.5},
                  {49, 0.0015413331334360185}});
}

TEST(LearningRate, InverseSqrtPeaksAtTheEndOfTheWarmup) {
  expect_factors(schedule::inverse_sqrt(4), {{0, 0.25}, {3, 1}, {15, 0.5}, {63, 0.25}});
}

TEST(LearningRate, EachGroupKeepsItsOwnBase) {
  auto optimizer = two_groups();
  LearningRate learning_rate(optimizer, schedule::linear(0.5, 1, 2));
  EXPECT_THAT(learning_rate.values(), testing::ElementsAre(0.5, 0.05));
  learning_rate.step();
  EXPECT_THAT(learning_rate.values(), testing::ElementsAre(0.75, testing::DoubleEq(0.075)));
  learning_rate.set_step(7);
  EXPECT_THAT(learning_rate.values(), testing::ElementsAre(1, 0.1));
  EXPECT_EQ(learning_rate.current_step(), 7);
}

TEST(LearningRate, IsASchedulerOfLibTorch) {
  auto optimizer = two_groups();
  LearningRate learning_rate(optimizer, schedule::linear(0, 1, 4));
  torch::optim::LRScheduler& scheduler = learning_rate;
  for (int step = 0; step < 3; ++step) scheduler.step();
  EXPECT_THAT(learning_rate.values(), testing::ElementsAre(0.75, testing::DoubleEq(0.075)));
  EXPECT_EQ(learning_rate.current_step(), 3);
}

TEST(LearningRate, AGroupAddedLaterIsRefused) {
  auto optimizer = two_groups();
  LearningRate learning_rate(optimizer, schedule::constant());
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::zeros(1, torch::requires_grad())}, std::make_unique<torch::optim::SGDOptions>(1.0)));
  EXPECT_THROW(learning_rate.step(), UsageError);
}

TEST(LearningRate, ArgumentsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(schedule::linear(0, 1, 0), UsageError);
  EXPECT_THROW(schedule::linear(-1, 1, 5), UsageError);
  EXPECT_THROW(schedule::cosine(5, std::nan("")), UsageError);
  EXPECT_THROW(schedule::multi_step({5, 3}), UsageError);
  EXPECT_THROW(schedule::one_cycle(10, {.warmup = 1}), UsageError);
  EXPECT_THROW(schedule::one_cycle(10, {.div_factor = 0}), UsageError);
  EXPECT_THROW(schedule::sequence({}), UsageError);
  EXPECT_THROW(batch_scale(0, BatchScaling::linear), UsageError);
}

TEST(LearningRate, ScalesWithTheBatch) {
  EXPECT_EQ(batch_scale(16, BatchScaling::linear), 16);
  EXPECT_EQ(batch_scale(16, BatchScaling::square_root), 4);
}

TEST(LearningRate, PlateauLowersAfterPatience) {
  auto optimizer = two_groups();
  ReduceOnPlateau plateau(optimizer, {.factor = 0.5, .patience = 2, .minimum = 0.04});
  std::vector<bool> lowered;
  for (const double metric : {3.0, 2.0, 2.0, 2.1, 2.0, 1.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0})
    lowered.push_back(plateau.observe(metric));
  EXPECT_THAT(lowered, testing::ElementsAre(false, false, false, false, true, false, false, false, true,
                                            false, false, true));
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.125);
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[1].options().get_lr(), 0.04) << "the minimum";
  EXPECT_THROW(plateau.observe(std::nan("")), UsageError);
}

TEST(LearningRate, PlateauLowersWhenAnAccuracyStopsGrowing) {
  auto optimizer = two_groups();
  ReduceOnPlateau plateau(optimizer, {.patience = 0, .maximize = true});
  EXPECT_FALSE(plateau.observe(0.5));
  EXPECT_FALSE(plateau.observe(0.6));
  EXPECT_TRUE(plateau.observe(0.6));
}

}  // namespace
}  // namespace lockstep
