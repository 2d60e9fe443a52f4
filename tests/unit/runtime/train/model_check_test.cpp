// A model's mistakes are found from one forward, which leaves the model as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/train/debug.h"
#include "runtime/train/grad_scaler.h"
#include "runtime/train/settings.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;

struct PictureNetImpl : torch::nn::Module {
  explicit PictureNetImpl(bool biases) {
    const auto options = torch::nn::Conv2dOptions(3, 8, 3).padding(1);
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(options).bias(biases)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    middle = register_module("middle", torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(biases)));
    middle_norm = register_module("middle_norm", torch::nn::BatchNorm1d(8));
    head = register_module("head", torch::nn::Linear(8, 4));  // its bias stays: no norm after it
    drop = register_module("drop", torch::nn::Dropout(0.5));
  }
  torch::Tensor forward(const torch::Tensor& pictures) {
    const auto features = torch::relu(norm(first(pictures))).mean({2, 3});
    return head(drop(middle_norm(middle(features))));
  }
  torch::nn::Conv2d first{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear middle{nullptr};
  torch::nn::BatchNorm1d middle_norm{nullptr};
  torch::nn::Linear head{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(PictureNet);

torch::Tensor pictures() {
  torch::manual_seed(6);
  return torch::randn({4, 3, 8, 8});
}

TEST(ModelCheck, FindsBiasesInFrontOfBatchNorms) {
  PictureNet with(true);
  const auto x = pictures();
  const auto found = check_model(*with, [&] { return with(x).square().sum(); });
  EXPECT_THAT(found.biases_before_batch_norm, ElementsAre("first.bias", "middle.bias"));
  EXPECT_THAT(found.text(), HasSubstr("first.bias: the batch norm after it subtracts this bias again"));
  PictureNet without(false);
  EXPECT_EQ(check_model(*without, [&] { return without(x).square().sum(); }).text(), "");
}

// The oracle of the graph: a real backward gives the bias in front of the norm no gradient but rounding.
TEST(ModelCheck, TheBiasesThatItFindsHaveNoEffect) {
  PictureNet net(true);
  net->to(torch::kDouble);
  const auto x = pictures().to(torch::kDouble);
  const auto targets = torch::randn({4, 4}, torch::kDouble);
  net->drop->eval();
  torch::square(net(x) - targets).sum().backward();
  const auto largest = [](const torch::Tensor& parameter) {
    return parameter.grad().abs().max().item<double>();
  };
  EXPECT_LT(largest(net->first->bias), 1e-10);
  EXPECT_LT(largest(net->middle->bias), 1e-10);
  EXPECT_GT(largest(net->head->bias), 1e-3);
}

TEST(ModelCheck, FindsBiasesUnderAutocastToo) {
  PictureNet net(true);
  const auto x = pictures();
  const auto found = check_model(*net, [&] {
    const Autocast autocast(torch::kCPU);
    return net(x).square().sum();
  });
  EXPECT_THAT(found.biases_before_batch_norm, ElementsAre("first.bias", "middle.bias"));
}

TEST(ModelCheck, FindsParametersThatBackwardDoesNotReach) {
  PictureNet net(false);
  const auto x = pictures();
  net->middle->weight.set_requires_grad(false);  // frozen on purpose: not a finding
  const auto found = check_model(*net, [&] { return net->norm(net->first(x)).square().sum(); });
  EXPECT_THAT(found.parameters_without_gradient,
              ElementsAre("middle_norm.weight", "middle_norm.bias", "head.weight", "head.bias"));
}

TEST(ModelCheck, ListsOperationsThatStayFloatUnderAutocast) {
  PictureNet net(false);
  const auto x = pictures();
  const auto loss = [&] { return torch::log_softmax(net(x).to(torch::kFloat), 1).sum(); };
  const auto found = check_model(*net, [&] {
    const Autocast autocast(torch::kCPU);
    return loss();
  });
  EXPECT_THAT(found.float_operations, Contains(Key("aten::log_softmax")));
  EXPECT_THAT(found.float_operations, Not(Contains(Key("aten::conv2d"))));
  EXPECT_THAT(found.float_operations, Not(Contains(Key("aten::addmm"))));
  EXPECT_THAT(found.text(), HasSubstr("float under autocast:"));
  EXPECT_THAT(check_model(*net, loss).float_operations, IsEmpty()) << "without autocast";
}

TEST(ModelCheck, LeavesTheModelAsItWas) {
  PictureNet net(true);
  const auto x = pictures();
  const auto mean = net->norm->running_mean.clone();
  torch::manual_seed(9);
  const auto next = torch::rand({3});
  torch::manual_seed(9);
  check_model(*net, [&] { return net(x).square().sum(); });
  EXPECT_TRUE(torch::equal(torch::rand({3}), next)) << "random numbers";
  EXPECT_TRUE(torch::equal(net->norm->running_mean, mean));
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_THROW(check_model(*net, [&] { return x.sum(); }), UsageError);
}

TEST(ChannelsLast, ResultsAndGradientsAreEqual) {
  PictureNet net(true);
  net->to(torch::kDouble);
  net->drop->eval();
  const auto x = pictures().to(torch::kDouble);
  const auto run = [&](const torch::Tensor& batch) {
    net->zero_grad();
    const auto output = net(batch);
    output.square().sum().backward();
    return std::pair{output.detach(), net->first->weight.grad().clone()};
  };
  const auto [expected, gradient] = run(x);
  net->first->weight.mutable_grad() = torch::Tensor();
  to_channels_last(*net);
  EXPECT_TRUE(net->first->weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(net->first(to_channels_last(x)).is_contiguous(torch::MemoryFormat::ChannelsLast));
  const auto [got, got_gradient] = run(to_channels_last(x));
  EXPECT_TRUE(torch::allclose(got, expected));
  EXPECT_TRUE(torch::allclose(got_gradient, gradient));
  EXPECT_TRUE(to_channels_last(torch::ones({2, 3})).is_contiguous()) << "a matrix stays as it is";
}

}  // namespace
}  // namespace lockstep
