// A TorchScript module trains under DistributedDataParallel with the gradients of the same module in C++.
#include "runtime/train/script_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include <sstream>

#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/train/validation.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The same layers in both languages, with a parameter that is used twice, a buffer, and a layer in a submodule.
struct EagerImpl : torch::nn::Module {
  EagerImpl() {
    weight = register_parameter("weight", torch::randn({6, 6}, torch::kDouble) / 3);
    unused = register_parameter("unused", torch::zeros({3}, torch::kDouble));
    shift = register_buffer("shift", torch::full({6}, 0.25, torch::kDouble));
    head = register_module("head", torch::nn::Linear(6, 4));
    head->to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::tanh(torch::matmul(x, weight) + shift);
    return torch::linear(torch::matmul(hidden, weight), head->weight, head->bias);
  }
  torch::Tensor weight;
  torch::Tensor unused;
  torch::Tensor shift;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Eager);

torch::jit::Module script_of(const Eager& eager) {
  const auto parameter = [](const torch::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
  torch::jit::Module head("__torch__.Head");
  head.register_parameter("weight", parameter(eager->head->weight), false);
  head.register_parameter("bias", parameter(eager->head->bias), false);
  head.define("def forward(self, x):\n  return torch.matmul(x, self.weight.t()) + self.bias\n");
  torch::jit::Module script("__torch__.Script");
  script.register_parameter("weight", parameter(eager->weight), false);
  script.register_parameter("unused", parameter(eager->unused), false);
  script.register_buffer("shift", eager->shift.clone());
  script.register_module("head", head);
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(R"(
    def forward(self, x):
      hidden = torch.tanh(torch.matmul(x, self.weight) + self.shift)
      return self.head.forward(torch.matmul(hidden, self.weight)), {"hidden": [hidden]}
  )");
  return script;
}

std::vector<std::string> names_of(const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.key());
  return names;
}

struct ScriptAndEager : ::testing::Test {
  ScriptAndEager() {
    torch::manual_seed(3);
    // That of Debian 13's LibTorch gives the fused tanh of this script wrong sizes: docs/users/toolkit.md.
    torch::jit::setTensorExprFuserEnabled(false);
  }
  Eager eager;
  ScriptModule script{script_of(eager)};
};

TEST_F(ScriptAndEager, NamesAreThoseOfTheScript) {
  EXPECT_THAT(names_of(script->named_parameters()),
              ElementsAre("weight", "unused", "head.weight", "head.bias"));
  EXPECT_THAT(names_of(script->named_buffers()), ElementsAre("shift"));
}

TEST_F(ScriptAndEager, GradientsAreEqualUnderDistributedDataParallel) {
  auto options = small_buckets();
  options.find_unused_parameters = true;
  DistributedDataParallel trained(script, world(), options);
  DistributedDataParallel oracle(eager, world(), options);
  torch::optim::SGD trained_optimizer(script->parameters(), 0.1);
  torch::optim::SGD oracle_optimizer(eager->parameters(), 0.1);
  const auto all = rows(4 * world().size(), 7);
  const auto inputs = my_part(all);
  // TorchScript compiles after it has seen a few calls, so several steps.
  for (int step = 0; step < 4; ++step) {
    for (const bool last : {false, true}) {
      const auto hold = trained.no_sync_unless(last);
      const auto hold_oracle = oracle.no_sync_unless(last);
      const auto half = inputs.chunk(2)[last ? 1 : 0];
      const auto output = trained(half);
      trained.backward(output.toTupleRef().elements()[0].toTensor().square().sum(), 2);
      oracle.backward(oracle(half).square().sum(), 2);
    }
    EXPECT_LT((script->named_parameters()["weight"].grad() - eager->weight.grad()).abs().max().item<double>(),
              1e-12);
    EXPECT_LT((script->named_parameters()["head.bias"].grad() - eager->head->bias.grad())
                  .abs()
                  .max()
                  .item<double>(),
              1e-12);
    trained_optimizer.step();
    oracle_optimizer.step();
    trained_optimizer.zero_grad();
    oracle_optimizer.zero_grad();
  }
  const auto result = script->forward(inputs).toTupleRef().elements()[0].toTensor();
  EXPECT_TRUE(torch::allclose(result, eager->forward(inputs)))
      << "the script computes with the trained parameters";
  EXPECT_TRUE(same_bits_everywhere(script->named_parameters()["weight"]));
}

TEST_F(ScriptAndEager, TheTrainedScriptCanBeSaved) {
  {
    const torch::NoGradGuard no_grad;
    script->named_parameters()["weight"].fill_(0.5);
  }
  std::stringstream file;
  script->script().save(file);
  ScriptModule loaded(torch::jit::load(file));
  EXPECT_TRUE(torch::equal(loaded->named_parameters()["weight"], torch::full({6, 6}, 0.5, torch::kDouble)));
  EXPECT_TRUE(loaded->named_parameters()["weight"].requires_grad());
}

TEST_F(ScriptAndEager, EvalReachesTheScript) {
  script->eval();
  EXPECT_FALSE(script->script().is_training());
  script->train();
  EXPECT_TRUE(script->script().is_training());
}

// As fine-tuning with frozen batch norms does.
TEST(ScriptModule, APartInEvaluationStaysSo) {
  torch::jit::Module norm("__torch__.Norm");
  norm.register_parameter("weight", torch::ones({2}), false);
  norm.register_attribute("training", c10::BoolType::get(), false);
  torch::jit::Module whole("__torch__.Whole");
  whole.register_module("norm", norm);
  whole.register_attribute("training", c10::BoolType::get(), true);
  ScriptModule model(whole);
  const auto expect_unchanged = [&] {
    EXPECT_TRUE(model->is_training());
    EXPECT_TRUE(model->script().is_training());
    EXPECT_FALSE(model->children().at(0)->is_training());
    EXPECT_FALSE(model->script().attr("norm").toModule().is_training());
  };
  expect_unchanged();
  {
    const Validation validation(world(), *model);
    EXPECT_FALSE(model->script().is_training());
  }
  expect_unchanged();
  model->train();
  EXPECT_TRUE(model->script().attr("norm").toModule().is_training());
}

TEST_F(ScriptAndEager, AllTensorsOfTheOutputAreFound) {
  std::vector<torch::Tensor> tensors;
  OutputTensors<c10::IValue>::collect(script->forward(rows(2, 1)), tensors);
  EXPECT_EQ(tensors.size(), 2U) << "the result, and the tensor in the list in the dictionary";
}

TEST(ScriptModule, AScriptWithoutParametersIsRefused) {
  EXPECT_THAT(error_of([] { ScriptModule(torch::jit::Module("__torch__.Empty")); }),
              HasSubstr("torch.jit.freeze()"));
}

}  // namespace
}  // namespace lockstep::testing
