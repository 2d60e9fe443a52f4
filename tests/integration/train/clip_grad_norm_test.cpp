// Clipping of given gradients, and code that clips and steps with any optimizer.
#include "runtime/train/clip_grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/train/distributed_optimizer.h"
#include "runtime/train/learning_rate.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(ClipGradNorm, DoesNotChangeSmallGradientsAndRefusesInvalidOnes) {
  auto parameter = torch::ones({4}, torch::kDouble).requires_grad_(true);
  parameter.mutable_grad() = torch::full({4}, 0.25, torch::kDouble);
  EXPECT_EQ(clip_grad_norm({parameter, torch::ones({2})}, 1.0), 0.5);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({4}, 0.25, torch::kDouble)));
  parameter.mutable_grad() = torch::full({4}, std::nan(""), torch::kDouble);
  EXPECT_TRUE(
      std::isnan(clip_grad_norm({parameter}, 1.0, {.norm_type = std::numeric_limits<double>::infinity()})));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, 1.0, {.error_if_nonfinite = true}); }),
              HasSubstr("the norm of all gradients is nan"));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, 1.0, {.norm_type = 0}); }),
              HasSubstr("must be more than 0"));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, -1.0); }), HasSubstr("must be 0 or more"));
}

TEST(ClipGradNorm, IsComputedInFloatForHalves) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    auto parameter = torch::ones({100}, type).requires_grad_(true);
    parameter.mutable_grad() = torch::full({100}, 30.125, type);
    EXPECT_NEAR(clip_grad_norm({parameter}, 1.0), 301.25, 0.01);
  }
}

template <typename Optimizer>
double clip_and_step(Optimizer& optimizer, LearningRate& learning_rate) {
  const double norm = clip_grad_norm(optimizer, 0.5);
  optimizer.step();
  learning_rate.step();
  optimizer.zero_grad();
  return norm;
}

TEST(DistributedOptimizer, IsUsedAsLibTorchsByGenericCode) {
  torch::manual_seed(7);
  Net net;
  Net alone = copy_of(net);
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto options = torch::optim::AdamWOptions(0.01).weight_decay(0.3);
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, decay_groups(*net, options));
  torch::optim::AdamW reference(decay_groups(*alone, options));
  LearningRate learning_rate(optimizer, schedule::linear(1, 0.1, 4));
  LearningRate reference_rate(reference, schedule::linear(1, 0.1, 4));
  const std::int64_t ranks = world().size();
  for (std::uint64_t step = 0; step < 4; ++step) {
    const auto inputs = rows(3 * ranks, 100 + step);
    const auto targets = rows(3 * ranks, 200 + step);
    const auto mine = [&](const torch::Tensor& all) {
      return all.slice(0, 3 * world().rank(), 3 * world().rank() + 3);
    };
    ddp.backward(sum_of_squares(ddp(mine(inputs)), mine(targets)));
    (sum_of_squares(alone->forward(inputs), targets) / static_cast<double>(ranks)).backward();
    const double norm = clip_and_step(optimizer, learning_rate);
    EXPECT_NEAR(norm, clip_and_step(reference, reference_rate), 1e-9 * norm);
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_TRUE(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-9, 1e-12));
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[1].options().get_lr(), 0.001);
  ReduceOnPlateau plateau(optimizer, {.factor = 0.5, .patience = 0});
  plateau.observe(1);
  EXPECT_TRUE(plateau.observe(2));
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[1].options().get_lr(), 0.0005);
}

TEST(DistributedOptimizer, RefusesGroupsWithoutOptionsIfThereAreNoDefaults) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const std::vector<torch::optim::OptimizerParamGroup> groups{{net->parameters()}};
  EXPECT_THAT(error_of([&] { DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, groups); }),
              HasSubstr("group 0 has no options"));
}

}  // namespace
}  // namespace lockstep::testing
