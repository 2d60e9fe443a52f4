// SyncBatchNorm on several ranks is BatchNorm on the whole batch.
#include "runtime/train/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/ddp/collectives.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kStatisticsTolerance = 1e-12;

// Ranks have batches of different sizes: rank 0 has 2 samples, rank 1 has 3, ...
std::int64_t first_row(int rank) {
  return rank * (rank + 3) / 2;
}

torch::Tensor whole_batch(std::uint64_t seed) {
  return rows(first_row(world().size()), seed, 3 * 4 * 5).view({-1, 3, 4, 5}) * 2 + 100;
}

torch::Tensor mine(const torch::Tensor& whole) {
  return whole.slice(0, first_row(world().rank()), first_row(world().rank() + 1)).clone();
}

double difference(const torch::Tensor& left, const torch::Tensor& right) {
  return (left - right).abs().max().item<double>();
}

void expect_like_one_process(torch::nn::BatchNormOptions options) {
  torch::nn::BatchNorm2d whole(options);
  SyncBatchNorm synced(world(), options);
  whole->to(torch::kDouble);
  synced->to(torch::kDouble);
  if (options.affine()) {
    const torch::NoGradGuard no_grad;
    for (auto& norm :
         {std::make_pair(whole->weight, whole->bias), std::make_pair(synced->weight, synced->bias)}) {
      norm.first.copy_(torch::tensor({0.5, 1.5, -2.0}));
      norm.second.copy_(torch::tensor({1.0, 0.0, 3.0}));
    }
  }
  for (std::uint64_t step = 0; step < 3; ++step) {
    const torch::Tensor all = whole_batch(step).requires_grad_();
    const torch::Tensor part = mine(all.detach()).requires_grad_();
    const torch::Tensor target = whole_batch(50 + step);
    const torch::Tensor expected = whole(all);
    const torch::Tensor got = synced(part);
    EXPECT_LT(difference(got, mine(expected)), kStatisticsTolerance);
    (expected * target).square().sum().backward();
    (got * mine(target)).square().sum().backward();
    const double scale = all.grad().abs().max().item<double>();
    EXPECT_LT(difference(part.grad(), mine(all.grad())) / scale, kStatisticsTolerance);
  }
  if (options.affine()) {
    // Each rank has its own part of the sum, as of all parameters: DistributedDataParallel adds them up.
    for (const auto& [ours, theirs] :
         {std::make_pair(synced->weight, whole->weight), std::make_pair(synced->bias, whole->bias)}) {
      torch::Tensor sum = ours.grad().clone();
      all_reduce(world(), sum);
      EXPECT_LT(difference(sum, theirs.grad()) / theirs.grad().abs().max().item<double>(),
                kStatisticsTolerance);
    }
  }
  if (options.track_running_stats()) {
    EXPECT_LT(difference(synced->running_mean, whole->running_mean), kStatisticsTolerance * 100);
    EXPECT_LT(difference(synced->running_var, whole->running_var), kStatisticsTolerance * 100);
    EXPECT_EQ(synced->num_batches_tracked.item<std::int64_t>(), 3);
    whole->eval();
    synced->eval();
    const torch::Tensor all = whole_batch(99);
    EXPECT_LT(difference(synced(mine(all)), mine(whole(all))), kStatisticsTolerance * 100);
  }
}

TEST(SyncBatchNorm, IsBatchNormOnTheWholeBatch) {
  expect_like_one_process(torch::nn::BatchNormOptions(3));
}

TEST(SyncBatchNorm, WithACumulativeAverage) {
  expect_like_one_process(torch::nn::BatchNormOptions(3).momentum(torch::optional<double>()));
}

TEST(SyncBatchNorm, WithoutParametersAndRunningStatistics) {
  expect_like_one_process(torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false));
}

TEST(SyncBatchNorm, EvaluatesEachRanksBatchAloneWithoutRunningStatistics) {
  const auto options = torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false);
  torch::nn::BatchNorm2d own(options);
  SyncBatchNorm synced(world(), options);
  own->eval();
  synced->eval();
  const torch::Tensor part = mine(whole_batch(5));
  EXPECT_LT(difference(synced(part), own(part)), kStatisticsTolerance);
}

TEST(SyncBatchNorm, ARankMayHaveAnEmptyBatch) {
  SyncBatchNorm norm(world(), torch::nn::BatchNormOptions(3));
  norm->to(torch::kDouble);
  const torch::Tensor all = whole_batch(1);
  const torch::Tensor part = world().rank() == world().size() - 1 ? all : all.slice(0, 0, 0);
  torch::nn::BatchNorm2d expected(torch::nn::BatchNormOptions(3));
  expected->to(torch::kDouble);
  const torch::Tensor got = norm(part.clone().requires_grad_());
  got.sum().backward();
  if (part.size(0) > 0) {
    EXPECT_LT(difference(got, expected(all)), kStatisticsTolerance);
  }
}

// The gradients of a penalty on the first gradients: what gradient penalties of a GAN need.
struct SecondGradients {
  torch::Tensor input, weight, bias;
};

template <typename Norm>
SecondGradients second_gradients(Norm& norm, const torch::Tensor& input, const torch::Tensor& target) {
  const torch::Tensor x = input.detach().clone().requires_grad_();
  const torch::Tensor loss = (norm(x).tanh() * target).sum();
  const auto first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  const torch::Tensor penalty = (first[0] * target).square().sum();
  const auto second = torch::autograd::grad({penalty}, {x, norm->weight, norm->bias});
  return {second[0], second[1], second[2]};
}

TEST(SyncBatchNorm, GradientsOfGradientsAreThoseOfTheWholeBatch) {
  torch::nn::BatchNorm2d whole(torch::nn::BatchNormOptions(3));
  SyncBatchNorm synced(world(), torch::nn::BatchNormOptions(3));
  whole->to(torch::kDouble);
  synced->to(torch::kDouble);
  const torch::Tensor input = whole_batch(11) - 100;
  const torch::Tensor target = whole_batch(12) - 100;
  const auto expected = second_gradients(whole, input, target);
  const auto got = second_gradients(synced, mine(input), mine(target));
  const auto relative = [](const torch::Tensor& left, const torch::Tensor& right) {
    return difference(left, right) / right.abs().max().item<double>();
  };
  EXPECT_LT(relative(got.input, mine(expected.input)), 1e-9);
  const torch::Tensor of_parameters = torch::stack({got.weight, got.bias});
  all_reduce(world(), of_parameters);
  EXPECT_LT(relative(of_parameters, torch::stack({expected.weight, expected.bias})), 1e-9);
}

TEST(SyncBatchNorm, TrainsUnderDistributedDataParallel) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Conv2d(3, 4, 1), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                              torch::nn::Conv2d(4, 2, 1), torch::nn::BatchNorm2d(2));
  model->to(torch::kDouble);
  auto whole = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  convert_sync_batch_norm(world(), *model);
  EXPECT_EQ(model->named_parameters().keys(), whole->named_parameters().keys());
  DistributedDataParallel ddp(model, world(), small_buckets());
  const torch::Tensor all = whole_batch(7);
  whole->forward(all).square().sum().backward();
  ddp.backward(ddp(mine(all)).square().sum(), 1);
  for (const auto& entry : whole->named_parameters()) {
    const torch::Tensor expected = entry.value().grad() / world().size();
    const double scale = std::max(1.0, expected.abs().max().item<double>());
    EXPECT_LT(difference(model->named_parameters()[entry.key()].grad(), expected) / scale, 1e-10)
        << entry.key();
  }
}

struct WithMemberImpl : torch::nn::Module {
  WithMemberImpl() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(WithMember);

TEST(SyncBatchNorm, ConvertingAMemberIsRefusedByName) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), WithMember());
  EXPECT_THAT(error_of([&] { convert_sync_batch_norm(world(), *model); }), HasSubstr("'1.norm' is a member"));
}

struct WithLayersImpl : torch::nn::Module {
  WithLayersImpl() { layers = register_module("layers", torch::nn::Sequential(torch::nn::BatchNorm1d(4))); }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(WithLayers);

TEST(SyncBatchNorm, ConvertsTheSequentialsOfAModuleClass) {
  WithLayers model;
  convert_sync_batch_norm(world(), *model);
  EXPECT_NE(model->layers[0]->as<SyncBatchNorm>(), nullptr);
  const double mean = (world().size() - 1) / 2.0;
  model->forward(torch::full({2, 4}, world().rank(), torch::kFloat));
  auto* const norm = model->layers[0]->as<SyncBatchNorm>();
  EXPECT_NEAR(norm->running_mean[0].item<double>(), 0.1 * mean, 1e-6);
}

TEST(SyncBatchNorm, ConvertingKeepsParametersAndStatistics) {
  torch::nn::Sequential model(torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).eps(0.5)));
  auto* const before = model[0]->as<torch::nn::BatchNorm1d>();
  const torch::Tensor weight = before->weight;
  before->running_mean.fill_(7);
  convert_sync_batch_norm(world(), *model);
  auto* const after = model[0]->as<SyncBatchNorm>();
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->weight.data_ptr(), weight.data_ptr());
  EXPECT_EQ(after->running_mean[1].item<float>(), 7);
  EXPECT_EQ(after->options.eps(), 0.5);
}

TEST(SyncBatchNorm, WrongInputsAreRefused) {
  SyncBatchNorm norm(world(), torch::nn::BatchNormOptions(3));
  EXPECT_THAT(error_of([&] { norm(torch::zeros({2, 4})); }), HasSubstr("it must be (N, 3, ...)"));
  EXPECT_THAT(error_of([&] { norm(torch::zeros({2, 3}, torch::kLong)); }), HasSubstr("floating point"));
  EXPECT_THAT(error_of([&] { norm(torch::zeros({0, 3})); }), HasSubstr("at least 2"));
}

}  // namespace
}  // namespace lockstep::testing
