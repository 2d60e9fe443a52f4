// The fused optimizers make the steps that LibTorch's make.
#include "runtime/train/fused_optimizer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "common/error.h"

namespace lockstep {
namespace {

// Odd sizes, so that vector loops have remainders; a scalar; channels_last; one large enough for two threads.
std::vector<torch::Tensor> parameters(torch::ScalarType type) {
  torch::manual_seed(2);
  std::vector<torch::Tensor> result = {
      torch::randn({37, 11}), torch::randn({}),
      torch::randn({5}),      torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast),
      torch::randn({70'001}), torch::randn({4})};
  for (auto& parameter : result) parameter = parameter.to(type).requires_grad_();
  return result;
}

void set_gradients(std::vector<torch::Tensor>& all, std::uint64_t step) {
  torch::manual_seed(100 + step);
  for (auto& parameter : all)
    parameter.mutable_grad() = torch::randn(parameter.sizes(), parameter.options().requires_grad(false));
  all.back().mutable_grad() = torch::Tensor();  // one without a gradient
}

template <typename Fused, typename Theirs, typename Options>
void expect_same_steps(const Options& options, torch::ScalarType type, double tolerance) {
  auto ours = parameters(type);
  auto theirs = parameters(type);
  Fused fused(ours, options);
  Theirs libtorch(theirs, options);
  for (std::uint64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    fused.step();
    libtorch.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double scale = theirs[i].abs().max().template item<double>();
    EXPECT_LT((ours[i] - theirs[i]).abs().max().template item<double>() / scale, tolerance) << i;
  }
}

template <typename Fused, typename Theirs, typename Options>
void expect_same_steps(const Options& options) {
  expect_same_steps<Fused, Theirs>(options, torch::kDouble, 1e-13);
  expect_same_steps<Fused, Theirs>(options, torch::kFloat, 2e-5);
}

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

TEST(FusedOptimizer, SgdMakesLibTorchsSteps) {
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1).weight_decay(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  expect_same_steps<FusedSGD, torch::optim::SGD>(
      SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST(FusedOptimizer, AdamMakesLibTorchsSteps) {
  expect_same_steps<FusedAdam, torch::optim::Adam>(AdamOptions(0.01));
  expect_same_steps<FusedAdam, torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}));
  expect_same_steps<FusedAdam, torch::optim::Adam>(AdamOptions(0.01).amsgrad(true));
}

TEST(FusedOptimizer, AdamWMakesLibTorchsSteps) {
  expect_same_steps<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01));
  expect_same_steps<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01).weight_decay(0.3).eps(1e-4));
  expect_same_steps<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01).amsgrad(true));
}

TEST(FusedOptimizer, ContinuesFromLibTorchsSavedState) {
  auto ours = parameters(torch::kDouble);
  auto theirs = parameters(torch::kDouble);
  torch::optim::AdamW libtorch(theirs, AdamWOptions(0.01));
  for (std::uint64_t step = 0; step < 3; ++step) {
    set_gradients(theirs, step);
    libtorch.step();
  }
  std::stringstream file;
  torch::save(libtorch, file);
  FusedAdamW fused(ours, AdamWOptions(0.01));
  torch::load(fused, file);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < ours.size(); ++i) ours[i].copy_(theirs[i]);
  }
  set_gradients(ours, 9);
  set_gradients(theirs, 9);
  fused.step();
  libtorch.step();
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-13, 1e-13)) << i;
}

TEST(FusedOptimizer, ALoadedStateGetsTheStridesOfItsParameter) {
  torch::manual_seed(3);
  torch::Tensor plain = torch::randn({4, 3, 5, 5}, torch::kDouble).requires_grad_();
  torch::optim::AdamW libtorch({plain}, AdamWOptions(0.01));
  plain.mutable_grad() = torch::randn({4, 3, 5, 5}, torch::kDouble);
  libtorch.step();
  std::stringstream file;
  torch::save(libtorch, file);
  torch::Tensor last = plain.detach().clone(torch::MemoryFormat::ChannelsLast).requires_grad_();
  FusedAdamW fused(std::vector<torch::Tensor>{last}, AdamWOptions(0.01));
  torch::load(fused, file);
  last.mutable_grad() = plain.grad().clone();
  libtorch.step();
  fused.step();
  EXPECT_TRUE(torch::allclose(last, plain, 1e-13, 1e-13));
}

TEST(FusedOptimizer, AChangedParameterIsSeenByAutograd) {
  torch::Tensor parameter = torch::ones({3}).requires_grad_();
  FusedSGD optimizer(std::vector<torch::Tensor>{parameter}, SGDOptions(0.1));
  const torch::Tensor loss = (parameter * parameter).sum();
  parameter.mutable_grad() = torch::ones({3});
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error) << "saved values were overwritten";
}

// Not a sum of products with one rounding, which some processors compute and others do not.
TEST(FusedOptimizer, RoundsAfterEachOperation) {
  constexpr std::int64_t count = 1000;
  const torch::Tensor gradients = torch::sin(torch::arange(count, torch::kFloat)) + 1;
  torch::Tensor parameter = torch::cos(torch::arange(count, torch::kFloat)).requires_grad_();
  const torch::Tensor before = parameter.detach().clone();
  FusedSGD optimizer(std::vector<torch::Tensor>{parameter}, torch::optim::SGDOptions(0.3).weight_decay(0.7));
  parameter.mutable_grad() = gradients;
  optimizer.step();
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = before[i].item<float>();
    const volatile float decayed = 0.7F * value;  // volatile: the compiler must round each result
    const volatile float gradient = gradients[i].item<float>() + decayed;
    const volatile float change = 0.3F * gradient;
    ASSERT_EQ(parameter[i].item<float>(), value - change) << i;
  }
}

TEST(FusedOptimizer, DecayGroupsLeaveOutBiasesAndNorms) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  const auto groups = decay_groups(*model, AdamWOptions(0.7).weight_decay(0.2));
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].params().size(), 1U) << "the linear layer's weight";
  EXPECT_EQ(groups[1].params().size(), 3U);
  EXPECT_EQ(static_cast<const AdamWOptions&>(groups[0].options()).weight_decay(), 0.2);
  EXPECT_EQ(static_cast<const AdamWOptions&>(groups[1].options()).weight_decay(), 0);
  EXPECT_EQ(static_cast<const AdamWOptions&>(groups[1].options()).lr(), 0.7);
  // The options are given once.
  FusedAdamW optimizer(groups);
  for (const auto& group : optimizer.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.7);
}

TEST(FusedOptimizer, DecayGroupsListATensorWithTwoNamesOnce) {
  torch::nn::Linear shared(3, 3);
  const auto groups = decay_groups(*torch::nn::Sequential(shared, shared), SGDOptions(0.1));
  EXPECT_EQ(groups[0].params().size(), 1U);
  EXPECT_EQ(groups[1].params().size(), 1U);
}

TEST(FusedOptimizer, UnsupportedParametersAreRefused) {
  torch::Tensor half = torch::ones({3}, torch::kBFloat16).requires_grad_();
  half.mutable_grad() = torch::ones({3}, torch::kBFloat16);
  FusedAdamW optimizer(std::vector<torch::Tensor>{half});
  EXPECT_THROW(optimizer.step(), UsageError);
  torch::Tensor table = torch::ones({3, 2}).requires_grad_();
  table.mutable_grad() = torch::ones({3, 2}).to_sparse();
  FusedSGD sparse(std::vector<torch::Tensor>{table}, SGDOptions(0.1));
  EXPECT_THROW(sparse.step(), UsageError);
}

}  // namespace
}  // namespace lockstep
