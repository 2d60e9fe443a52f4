#include "runtime/train/weight_average.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "common/error.h"
#include "tests/archive_in_memory.h"

namespace lockstep {
namespace {

TEST(WeightAverage, FollowsTheWeights) {
  torch::nn::Linear model(2, 1);
  const torch::NoGradGuard no_grad;
  model->weight.fill_(1);
  WeightAverage average(*model, 0.5);
  double expected = 1;
  for (int step = 1; step <= 20; ++step) {
    model->weight.fill_(step);
    average.update();
    const double decay = std::min(0.5, (1.0 + step) / (10.0 + step));
    expected = decay * expected + (1 - decay) * step;
  }
  EXPECT_NEAR(average.averages()[0][0][0].item<double>(), expected, 1e-5);
}

TEST(WeightAverage, OfHalvesFollowsSmallChanges) {
  torch::nn::Linear model(2, 1);
  model->to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  model->weight.fill_(1);
  WeightAverage average(*model, 0.999);
  for (int step = 0; step < 2000; ++step) average.update();
  model->weight.fill_(1.5);
  for (int step = 0; step < 5000; ++step) average.update();
  const auto before = average.averages()[0].clone();
  EXPECT_GE(before[0][0].item<double>(), 1.49);
  {
    const auto swapped = average.swap();
    EXPECT_TRUE(torch::equal(model->weight, before.to(torch::kBFloat16)));
  }
  EXPECT_EQ(model->weight[0][0].item<double>(), 1.5);
  EXPECT_TRUE(torch::equal(average.averages()[0], before));
}

TEST(WeightAverage, SwapsValuesAndGivesThemBack) {
  torch::nn::Linear model(2, 1);
  WeightAverage average(*model, 0.9);
  const torch::Tensor begin = model->weight.detach().clone();
  const void* const memory = model->weight.data_ptr();
  {
    const torch::NoGradGuard no_grad;
    model->weight.add_(1);
  }
  const torch::Tensor trained = model->weight.detach().clone();
  {
    const auto swapped = average.swap();
    EXPECT_TRUE(torch::equal(model->weight, begin));
    EXPECT_EQ(model->weight.data_ptr(), memory);
    EXPECT_THROW(average.update(), UsageError);
    EXPECT_THROW(average.swap(), UsageError);
  }
  EXPECT_TRUE(torch::equal(model->weight, trained));
  EXPECT_TRUE(torch::equal(average.averages()[0], begin));
}

TEST(WeightAverage, TrainingWithinTheScopeIsRefused) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    torch::nn::Linear model(2, 1);
    model->to(type);
    WeightAverage average(*model, 0.9);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
    const torch::Tensor trained = model->weight.detach().clone();
    const auto train = [&] {
      const auto swapped = average.swap();
      model->forward(torch::ones({1, 2}, type)).sum().backward();
      optimizer.step();
    };
    EXPECT_THROW(train(), UsageError);
    EXPECT_TRUE(torch::equal(model->weight, trained));
    EXPECT_FALSE(average.swapped());
    const auto fail_for_another_reason = [&] {
      const auto swapped = average.swap();
      optimizer.step();
      throw std::runtime_error("another reason");
    };
    EXPECT_THROW(fail_for_another_reason(), std::runtime_error);
  }
}

TEST(WeightAverage, OfWeightsThatAreNotNumbersCanBeSwapped) {
  torch::nn::Linear model(2, 1);
  const torch::NoGradGuard no_grad;
  model->weight.fill_(std::numeric_limits<float>::quiet_NaN());
  WeightAverage average(*model, 0.9);
  EXPECT_NO_THROW({ const auto swapped = average.swap(); });
}

TEST(WeightAverage, ATensorWithTwoNamesIsSwappedOnce) {
  torch::nn::Linear shared(2, 2);
  torch::nn::Sequential model(shared, shared);
  WeightAverage average(*model, 0.9);
  EXPECT_EQ(average.averages().size(), 2U);
  const torch::Tensor begin = shared->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    shared->weight.add_(1);
  }
  const torch::Tensor trained = shared->weight.detach().clone();
  {
    const auto swapped = average.swap();
    EXPECT_TRUE(average.swapped());
    EXPECT_TRUE(torch::equal(shared->weight, begin));
  }
  EXPECT_FALSE(average.swapped());
  EXPECT_TRUE(torch::equal(shared->weight, trained));
}

TEST(WeightAverage, StateOfAnotherModelIsRefused) {
  torch::nn::Linear model(2, 1);
  WeightAverage average(*model, 0.9);
  const auto load = [&](const std::vector<torch::Tensor>& averages, int updates) {
    testing::load_from(average, [&](auto& archive) {
      archive.write("averages", c10::List<torch::Tensor>(averages));
      archive.write("updates", updates);
    });
  };
  EXPECT_THROW(load({torch::zeros({1, 2})}, 1), Error);
  EXPECT_THROW(load({torch::zeros({1, 3}), torch::zeros({1})}, 1), Error);
  EXPECT_THROW(WeightAverage(*model, 1.5), UsageError);
  load({torch::full({1, 2}, 4.0), torch::zeros({1})}, 7);
  WeightAverage other(*model, 0.9);
  testing::load_from(other, [&](auto& archive) { average.save(archive); });
  EXPECT_EQ(other.updates(), 7);
  const auto swapped = other.swap();
  EXPECT_EQ(model->weight[0][0].item<double>(), 4);
  EXPECT_THROW(testing::load_from(other, [&](auto& archive) { average.save(archive); }), UsageError);
}

}  // namespace
}  // namespace lockstep
