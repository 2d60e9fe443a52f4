// The operators of real forwards and backwards are attributed to the modules that called them.
#include "runtime/profile/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/profile/operator_faults.h"
#include "runtime/profile/profile_summary.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(8, 64));
    blocks = register_module("blocks", torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::ReLU(),
                                                             torch::nn::Linear(64, 2)));
  }
  // torch::nn::Linear calls other operators in each version of LibTorch.
  static torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
    return torch::linear(x, layer->weight, layer->bias);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto block = [&](std::size_t i) {
      return torch::nn::Linear(blocks->ptr<torch::nn::LinearImpl>(i));
    };
    return linear(block(2), torch::relu(linear(block(0), torch::tanh(linear(first, x)))));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Sequential blocks;
};
TORCH_MODULE(TwoLayers);

class Operators : public ::testing::Test {
 protected:
  Operators() { add_model(*model_); }
  ~Operators() override { remove_model(*model_); }

  static Spans trace(const std::function<void()>& step) {
    trace_operators(true);
    start_spans();
    step();
    trace_operators(false);
    return stop_spans();
  }

  TwoLayers model_;
  torch::Tensor x_ = torch::ones({32, 8});
};

// The names of the operators of this part, by module.
std::multimap<std::string, std::string> operators_of(const Spans& spans, ModelPart part) {
  std::multimap<std::string, std::string> found;
  for (const Span& span : spans.spans) {
    if (span.part == part)
      found.emplace(span.module < 0 ? "" : spans.modules.at(static_cast<std::size_t>(span.module)),
                    span.name);
  }
  return found;
}

TEST_F(Operators, BelongToTheModuleThatOwnsTheirWeightsOrToTheOneBefore) {
  torch::Tensor loss;
  const Spans spans = trace([&] { loss = model_(x_).sum(); });
  EXPECT_THAT(spans.modules, ElementsAre("first", "blocks.0", "blocks.2"));
  EXPECT_THAT(operators_of(spans, ModelPart::forward),
              ElementsAre(Pair("blocks.0", "aten::linear"), Pair("blocks.0", "aten::relu"),
                          Pair("blocks.2", "aten::linear"), Pair("blocks.2", "aten::sum"),
                          Pair("first", "aten::linear"), Pair("first", "aten::tanh")));
  EXPECT_THAT(operators_of(spans, ModelPart::node), IsEmpty());
  for (const Span& span : spans.spans) {
    if (span.name == "aten::linear" && spans.modules.at(static_cast<std::size_t>(span.module)) == "first") {
      EXPECT_EQ(span.bytes, 32 * 64 * sizeof(float));
    }
  }
}

TEST_F(Operators, ModulesOfASecondModelHaveItsNumber) {
  TwoLayers other;
  add_model(*other);
  const Spans spans = trace([&] { other(x_); });
  remove_model(*other);
  EXPECT_THAT(spans.modules,
              ElementsAre("first", "blocks.0", "blocks.2", "2:first", "2:blocks.0", "2:blocks.2"));
  const auto operators = operators_of(spans, ModelPart::forward);
  EXPECT_THAT(operators, Contains(Pair("2:first", "aten::linear")));
  EXPECT_THAT(operators, Not(Contains(Key("first"))));
  EXPECT_THAT(trace([] {}).modules, ElementsAre("first", "blocks.0", "blocks.2"));
}

// As those of a flattened LSTM, or of a model in one buffer.
TEST_F(Operators, ParametersMayShareMemory) {
  torch::NoGradGuard no_grad;
  std::int64_t elements = 0;
  for (const auto& parameter : model_->parameters()) elements += parameter.numel();
  const torch::Tensor memory = torch::zeros({elements});
  std::int64_t begin = 0;
  for (auto& parameter : model_->parameters()) {
    parameter.set_data(memory.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  const torch::AutoGradMode grad(true);
  const Spans spans = trace([&] { model_(x_); });
  EXPECT_THAT(operators_of(spans, ModelPart::forward),
              ElementsAre(Pair("blocks.0", "aten::linear"), Pair("blocks.0", "aten::relu"),
                          Pair("blocks.2", "aten::linear"), Pair("first", "aten::linear"),
                          Pair("first", "aten::tanh")));
}

TEST_F(Operators, NodesOfBackwardBelongToTheModuleWhoseOperatorMadeThem) {
  const Spans spans = trace([&] { model_(x_).sum().backward(); });
  const auto nodes = operators_of(spans, ModelPart::node);
  EXPECT_THAT(nodes, Contains(Pair("first", "TanhBackward0")));
  EXPECT_THAT(nodes, Contains(Pair("first", "AddmmBackward0")));
  EXPECT_THAT(nodes, Contains(Pair("blocks.0", "ReluBackward0")));
  EXPECT_THAT(nodes, Contains(Pair("blocks.0", "AddmmBackward0")));
  EXPECT_THAT(nodes, Contains(Pair("blocks.2", "SumBackward0")));
  EXPECT_THAT(operators_of(spans, ModelPart::backward), Contains(Pair("blocks.0", "aten::mm")));
  const auto modules = profile_summary(spans, {.rank = 0, .node = "n1"})["modules"];
  ASSERT_EQ(modules.size(), 3);
  for (const auto& module : modules) {
    EXPECT_GT(module["forward_ms"], 0) << module;
    EXPECT_GT(module["backward_ms"], 0) << module;
    EXPECT_GT(module["backward_bytes"], 0) << module;
  }
}

// An optimizer's operators get parameters too.
TEST_F(Operators, OutsideOfForwardAndBackwardBelongToNoModule) {
  torch::optim::SGD optimizer(model_->parameters(), 0.1);
  const Spans spans = trace([&] {
    torch::Tensor loss = model_(x_).sum();
    loss.backward();
    (void)(loss * 2);  // after backward
    optimizer.step();
    const torch::NoGradGuard evaluates;
    model_(x_);
  });
  std::map<std::string, int> calls;
  for (const auto& [module, name] : operators_of(spans, ModelPart::forward)) ++calls[name];
  EXPECT_EQ(calls["aten::linear"], 3) << "not those of the evaluation";
  EXPECT_EQ(calls.count("aten::mul"), 0);
  EXPECT_EQ(calls.count("aten::add_"), 0) << "the optimizer's";
}

TEST_F(Operators, MayHaveTheSizesOfTheirInputs) {
  trace_operators(true, true);
  start_spans();
  torch::mm(x_, torch::ones({8, 2})).neg_();
  trace_operators(false);
  std::vector<std::string> names;
  for (const Span& span : stop_spans().spans) names.push_back(span.name);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"aten::mm [32, 8] [8, 2]", "aten::neg_ [32, 2]"}));
}

TEST_F(Operators, SumsInHalfPrecisionAreFaultsOfTheModel) {
  const auto faults_of = [&](const std::function<void()>& step) { return trace(step).faults; };
  EXPECT_THAT(faults_of([&] {
                (void)model_(x_.expand({32, 8}).repeat({8, 1})).to(torch::kBFloat16).mean();
              }),
              ElementsAre(Key(Pair(OperationFault::half_sum, "aten::mean of 512 values in BFloat16"))));
  EXPECT_THAT(faults_of([&] {
                const torch::Tensor y = model_(x_.repeat({8, 1}));
                (void)y.to(torch::kBFloat16).sum(torch::kFloat);
                (void)y.to(torch::kBFloat16).sum(1);  // of two values
                (void)y.sum().item<float>();          // waits for no device
              }),
              IsEmpty());
}

TEST(OperatorFaults, AConvolutionIsTunedAgainForEachNewShape) {
  ConvolutionShapes shapes;
  const torch::Tensor weight = torch::ones({4, 3, 3, 3});
  const torch::Tensor other = torch::ones({4, 3, 3, 3});
  const auto is_new = [&](const torch::Tensor& of, std::int64_t size) {
    return shapes.is_new("aten::convolution", std::vector<c10::IValue>{torch::ones({2, 3, size, 8}), of});
  };
  EXPECT_FALSE(is_new(weight, 8)) << "the first shape is measured in any case";
  EXPECT_FALSE(is_new(weight, 8));
  EXPECT_FALSE(is_new(other, 9)) << "another layer";
  EXPECT_TRUE(is_new(weight, 9));
  EXPECT_FALSE(is_new(weight, 9));
  EXPECT_FALSE(shapes.is_new("aten::linear", std::vector<c10::IValue>{torch::ones({5, 8}), weight}));
}

// These tensors have a device, and no memory.
TEST(OperatorFaults, CopiesFromHostToDeviceAndWaitsAreFound) {
  const auto on = [](torch::DeviceType type) -> c10::IValue {
    const auto key = type == torch::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(key), caffe2::TypeMeta::Make<float>(),
                                                 torch::Device(type, type == torch::kCUDA ? 0 : -1));
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({10});
    return tensor;
  };
  const auto copied = [&](torch::DeviceType into, torch::DeviceType from) {
    const std::vector<c10::IValue> inputs = {on(into), on(from), true};
    return bytes_to_device("aten::copy_", inputs);
  };
  EXPECT_EQ(copied(torch::kCUDA, torch::kCPU), 40);
  EXPECT_EQ(copied(torch::kCPU, torch::kCUDA), 0);
  EXPECT_EQ(copied(torch::kCUDA, torch::kCUDA), 0);
  EXPECT_EQ(copied(torch::kCPU, torch::kCPU), 0);
  const std::vector<c10::IValue> number = {on(torch::kCUDA)};
  EXPECT_TRUE(waits_for_device("aten::_local_scalar_dense", number, torch::kCUDA));
  EXPECT_FALSE(waits_for_device("aten::add", number, torch::kCUDA));
  EXPECT_FALSE(waits_for_device("aten::_local_scalar_dense", std::vector{on(torch::kCPU)}, torch::kCUDA));
}

// Without a GPU recording starts and ends repeatedly, and prints nothing. Only a GPU shows what CUPTI records.
TEST(KernelsInAProfile, NeedAGpu) {
  EXPECT_EQ(can_trace_device(), torch::cuda::is_available());
  ::testing::internal::CaptureStderr();
  for (int cycle = 0; cycle < 2; ++cycle) {
    start_spans();
    trace_device(true);
    trace_device(true);  // the end of the warm-up
    torch::ones({64}).add_(1);
    trace_device(false);
    EXPECT_THAT(stop_spans().spans, IsEmpty());
  }
  trace_device(false);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace lockstep::profile
