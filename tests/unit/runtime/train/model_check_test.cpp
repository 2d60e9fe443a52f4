// A model's mistakes are found from one forward, which leaves the model as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include "common/error.h"
#include "runtime/train/debug.h"
#include "runtime/train/grad_scaler.h"
#include "runtime/train/script_module.h"
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
  EXPECT_THAT(check_model(*without, [&] { return without(x).square().sum(); }).biases_before_batch_norm,
              IsEmpty());
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

// A model with one fault of each kind, on request.
struct FaultyImpl : torch::nn::Module {
  explicit FaultyImpl(std::int64_t width) {
    first = register_module("first", torch::nn::Linear(64, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    head = register_module("head", torch::nn::Linear(width, 64));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::relu(middle(norm(torch::relu(first(x))))));
  }
  torch::nn::Linear head{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear middle{nullptr};
};
TORCH_MODULE(Faulty);

std::vector<std::string> others_of(Faulty& model, std::int64_t samples) {
  const auto x = torch::randn({samples, 64});
  return check_model(*model, [&] { return model(x).square().sum(); }).others;
}

TEST(ModelCheck, NamesDimensionsThatAreNotMultiplesOfEightWithTheNextSize) {
  Faulty odd(90);
  EXPECT_THAT(
      others_of(odd, 32),
      ElementsAre(
          "first.weight and 2 more: a dimension of 90 is not a multiple of 8, which slows matrix products: make it 96"));
  Faulty even(96);
  EXPECT_THAT(others_of(even, 32), IsEmpty());
  torch::nn::Embedding words(4999, 8);
  const auto tokens = torch::arange(4);
  EXPECT_THAT(
      check_model(*words, [&] { return words(tokens).sum(); }).text(),
      HasSubstr(
          "weight: a dimension of 4999 is not a multiple of 8, which slows matrix products: make it 5056"));
}

TEST(ModelCheck, NamesBatchNormsOfFewSamples) {
  Faulty model(96);
  EXPECT_THAT(
      others_of(model, 4),
      ElementsAre(HasSubstr("norm.weight: the statistics of this batch norm are those of 4 samples")));
  model->norm->eval();  // its statistics are fixed
  EXPECT_THAT(others_of(model, 4), IsEmpty());
}

TEST(ModelCheck, NamesSumsInHalfPrecision) {
  Faulty model(96);
  const auto x = torch::randn({32, 64});
  const auto with = [&](const std::function<torch::Tensor(torch::Tensor)>& loss) {
    return check_model(*model, [&] { return loss(model(x).to(torch::kBFloat16)); }).others;
  };
  EXPECT_THAT(with([](const auto& y) { return y.mean(); }),
              ElementsAre(HasSubstr("aten::mean of 2048 values in BFloat16: the result is rounded")));
  EXPECT_THAT(with([](const auto& y) { return y.sum(torch::kFloat); }), IsEmpty());
}

// TorchScript's optimiser changes the graph, but the operations can be seen.
TEST(ModelCheck, SeesTheOperationsOfScriptsAlsoOfOptimisedOnes) {
  torch::jit::Module script("__torch__.Net");
  script.register_parameter("weight", torch::randn({90, 64}, torch::requires_grad()), false);
  script.register_parameter("bias", torch::zeros({90}, torch::requires_grad()), false);
  script.register_buffer("mean", torch::zeros({90}));
  script.register_buffer("var", torch::ones({90}));
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(R"(
    def forward(self, x):
      y = torch.addmm(self.bias, x, self.weight.t())
      y = torch.batch_norm(y, None, None, self.mean, self.var, True, 0.1, 1e-5, False)
      y = torch.tanh(y) * 2.0 + 1.0
      return torch.mean(y, dtype=15)
  )");
  ScriptModule model(script);
  const auto x = torch::randn({32, 64}, torch::requires_grad());
  const auto loss = [&] { return model->forward(x).toTensor(); };
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(check_model(*model, loss).others,
                ElementsAre(HasSubstr("weight: a dimension of 90"), HasSubstr("aten::mean of 2880 values")));
    loss().backward();
  }
}

// A wide block keeps three results of 512 x 1024 floats, a narrow one three of 512 x 64; the outputs stay in any case.
TEST(SuggestCheckpoints, SuggestsTheModulesThatSaveMostForTheirTimeUntilTheBudgetIsMet) {
  const auto block = [](std::int64_t width) {
    return torch::nn::Sequential(torch::nn::Linear(64, width), torch::nn::ReLU(),
                                 torch::nn::Linear(width, 64));
  };
  struct Blocks : torch::nn::Module {
    torch::nn::Sequential list;
  } model;
  struct Layers : torch::nn::Module {
    explicit Layers(torch::nn::Sequential layers) : inner(register_module("inner", std::move(layers))) {}
    torch::Tensor forward(const torch::Tensor& x) { return inner->forward(x); }
    torch::nn::Sequential inner;
  };
  model.list =
      torch::nn::Sequential(std::make_shared<Layers>(block(64)), std::make_shared<Layers>(block(1024)),
                            std::make_shared<Layers>(block(64)));
  model.register_module("list", model.list);
  const auto x = torch::randn({512, 64});
  const auto forward = [&] { return model.list->forward(x).square().sum(); };
  constexpr std::uint64_t kRow = 512 * sizeof(float);
  const auto all = suggest_checkpoints(model, forward, 1U << 20U);
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all[0].module, "list.1");
  EXPECT_GE(all[0].saved_bytes, 1024 * kRow);
  EXPECT_LE(all[0].saved_bytes, (2 * 1024 + 64) * kRow);
  EXPECT_GT(all[0].recompute_ms, 0);
  EXPECT_TRUE(all[0].suggested);
  EXPECT_FALSE(all[1].suggested || all[2].suggested) << to_text(all);
  for (const auto& one : suggest_checkpoints(model, forward, 1U << 30U))
    EXPECT_FALSE(one.suggested) << "it fits";
  EXPECT_THAT(to_text(all), HasSubstr("* list.1 "));
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
