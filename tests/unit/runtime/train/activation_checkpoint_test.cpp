// A checkpointed part has the values and gradients of the same part without checkpointing.
#include "runtime/train/activation_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "common/error.h"
#include "runtime/ddp/operation_observer.h"
#include "runtime/train/grad_scaler.h"

namespace lockstep {
namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout) {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(6, 12)));
    second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(12, 6)));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls;
    return x + second(drop(torch::gelu(first(x))));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Dropout drop{nullptr};
  int calls = 0;
};
TORCH_MODULE(Block);

torch::Tensor input() {
  torch::manual_seed(5);
  return torch::randn({4, 6}, torch::kDouble).requires_grad_();
}

// Loss, the input's gradient and the parameters' gradients, in this order.
std::vector<torch::Tensor> run(Block& block,
                               const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  block->zero_grad();
  const torch::Tensor x = input();
  const torch::Tensor loss = forward(x).pow(2).sum();
  torch::rand({3});  // random numbers between forward and backward
  loss.backward();
  std::vector<torch::Tensor> results = {loss.detach(), x.grad().clone()};
  for (const auto& parameter : block->parameters()) results.push_back(parameter.grad().clone());
  return results;
}

void expect_equal(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
}

TEST(ActivationCheckpoint, GivesTheSameGradientsWithDropout) {
  Block block(0.5);
  const auto expected = run(block, [&](const torch::Tensor& x) { return block(x); });
  block->calls = 0;
  expect_equal(run(block, [&](const torch::Tensor& x) { return activation_checkpoint(block, x); }), expected);
  EXPECT_EQ(block->calls, 2) << "forward, and once more in backward";
}

TEST(ActivationCheckpoint, DoesNotChangeTheRandomNumbersThatFollow) {
  Block block(0.5);
  const auto next = [&](bool checkpointed) {
    const torch::Tensor x = input();
    const torch::Tensor loss = (checkpointed ? activation_checkpoint(block, x) : block(x)).sum();
    torch::rand({2});
    loss.backward();
    return torch::rand({2});
  };
  EXPECT_TRUE(torch::equal(next(true), next(false)));
}

TEST(ActivationCheckpoint, MayBeNested) {
  Block inner(0.3);
  Block outer(0.3);
  const auto whole = [&](bool checkpointed) {
    inner->zero_grad();
    outer->zero_grad();
    const torch::Tensor x = input();
    const auto both = [&](const std::vector<torch::Tensor>& tensors) {
      const torch::Tensor middle =
          checkpointed ? activation_checkpoint(inner, tensors[0]) : inner(tensors[0]);
      return std::vector<torch::Tensor>{outer(middle)};
    };
    auto parameters = inner->parameters();
    for (const auto& parameter : outer->parameters()) parameters.push_back(parameter);
    const torch::Tensor y =
        checkpointed ? activation_checkpoint(both, {x}, parameters).front() : both({x}).front();
    y.pow(2).sum().backward();
    std::vector<torch::Tensor> results = {x.grad().clone()};
    for (const auto& parameter : parameters) results.push_back(parameter.grad().clone());
    return results;
  };
  expect_equal(whole(true), whole(false));
}

TEST(ActivationCheckpoint, AcceptsAndReturnsSeveralTensors) {
  const auto function = [](const std::vector<torch::Tensor>& in) {
    return std::vector<torch::Tensor>{in[0] * in[1], in[0], torch::argmax(in[0]), in[1].exp()};
  };
  const auto gradients = [&](bool checkpointed) {
    const torch::Tensor a = input();
    const torch::Tensor b = input();
    const torch::Tensor constant = torch::ones({4, 6}, torch::kDouble);
    const auto out =
        checkpointed ? activation_checkpoint(function, {a, b, constant}, {}) : function({a, b, constant});
    EXPECT_EQ(out[2].scalar_type(), torch::kLong);
    (out[0].sum() + 2 * out[1].sum() + out[3].sum()).backward();
    return std::vector<torch::Tensor>{a.grad(), b.grad()};
  };
  expect_equal(gradients(true), gradients(false));
}

TEST(ActivationCheckpoint, KeepsNoIntermediateResults) {
  Block block(0.0);
  const torch::Tensor x = input();
  torch::Tensor intermediate;
  const auto y = activation_checkpoint(
      [&](const std::vector<torch::Tensor>& tensors) {
        const torch::Tensor hidden = block->first(tensors[0]);
        if (!intermediate.defined()) intermediate = hidden;
        return std::vector<torch::Tensor>{block->second(torch::gelu(hidden))};
      },
      {x}, block->parameters());
  EXPECT_EQ(intermediate.use_count(), 1U) << "only this test still holds it";
  EXPECT_FALSE(intermediate.requires_grad());
  y.front().sum().backward();
  EXPECT_TRUE(block->first->weight.grad().defined());
}

std::size_t heap_bytes() {
  const auto heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

struct Memory {
  std::size_t kept = 0;  // between forward and backward, above what was there before
  std::size_t peak = 0;  // at the end of any operation of forward and backward
};

Memory memory_of(bool checkpointed) {
  constexpr std::int64_t kRows = 512;
  constexpr std::int64_t kWidth = 256;
  std::vector<torch::nn::Sequential> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.emplace_back(torch::nn::Linear(kWidth, 4 * kWidth), torch::nn::GELU(),
                        torch::nn::Linear(4 * kWidth, kWidth));
    for (auto& parameter : blocks.back()->parameters())
      parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  auto x = torch::randn({kRows, kWidth});
  const std::size_t before = heap_bytes();
  Memory memory;
  const ddp::OperationObserver observer([&](const ddp::Operation& /*operation*/) {
    memory.peak = std::max(memory.peak, heap_bytes() - std::min(before, heap_bytes()));
  });
  for (auto& block : blocks) x = checkpointed ? activation_checkpoint(block, x) : block->forward(x);
  const auto loss = x.square().sum();
  memory.kept = heap_bytes() - before;
  loss.backward();
  return memory;
}

// Without checkpoints each block keeps its input (512 KiB) and two results of 2 MiB; with them only its input.
TEST(ActivationCheckpoint, TakesLessMemory) {
  memory_of(false);  // LibTorch 2.x keeps scratch memory from the first call on
  const Memory plain = memory_of(false);
  const Memory checkpointed = memory_of(true);
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fmt::print("kept {:.1f} MiB, with checkpoints {:.1f}; peak {:.1f} MiB, with checkpoints {:.1f}\n",
             mib(plain.kept), mib(checkpointed.kept), mib(plain.peak), mib(checkpointed.peak));
  EXPECT_NEAR(mib(plain.kept), 8 * 4.5, 2);
  EXPECT_NEAR(mib(checkpointed.kept), 8 * 0.5, 2);
  EXPECT_LT(checkpointed.peak, plain.peak / 2);
}

TEST(ActivationCheckpoint, RecomputesUnderTheSameAutocast) {
  Block block(0.0);
  block->to(torch::kFloat);
  std::vector<torch::ScalarType> types;
  torch::Tensor loss;
  {
    const Autocast autocast(torch::kCPU);
    loss = activation_checkpoint(
               [&](const std::vector<torch::Tensor>& tensors) {
                 const torch::Tensor y = block->first(tensors[0]);
                 types.push_back(y.scalar_type());
                 return std::vector<torch::Tensor>{y};
               },
               {input().to(torch::kFloat)}, block->parameters())
               .front()
               .sum();
  }
  loss.backward();
  EXPECT_THAT(types, testing::ElementsAre(torch::kBFloat16, torch::kBFloat16));
}

// Two steps of SGD under Autocast: the losses of the steps, and the gradients of the last one.
std::vector<torch::Tensor> two_steps_under_autocast(bool checkpointed) {
  torch::manual_seed(3);
  Block block(0.0);
  block->to(torch::kFloat);
  torch::optim::SGD optimizer(block->parameters(), torch::optim::SGDOptions(1.0));
  const torch::Tensor x = input().detach().to(torch::kFloat);
  std::vector<torch::Tensor> results;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const Autocast autocast(torch::kCPU);
      loss = (checkpointed ? activation_checkpoint(block, x) : block(x)).square().mean();
    }
    loss.backward();
    optimizer.step();
    results.push_back(loss.detach());
  }
  for (const auto& parameter : block->parameters()) results.push_back(parameter.grad().clone());
  return results;
}

TEST(ActivationCheckpoint, UnderAutocastTheNextStepUsesTheUpdatedWeights) {
  expect_equal(two_steps_under_autocast(true), two_steps_under_autocast(false));
}

// The gradients of a whole forward under Autocast, which gets two blocks.
std::vector<torch::Tensor> gradients_under_autocast(
    const std::function<torch::Tensor(Block&, Block&, const torch::Tensor&)>& forward) {
  torch::manual_seed(4);
  Block one(0.0);
  Block two(0.0);
  one->to(torch::kFloat);
  two->to(torch::kFloat);
  const torch::Tensor x = input().detach().to(torch::kFloat);
  torch::Tensor loss;
  {
    const Autocast autocast(torch::kCPU);
    loss = forward(one, two, x).square().mean();
  }
  loss.backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& block : {one, two}) {
    for (const auto& parameter : block->parameters())
      gradients.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros({}));
  }
  return gradients;
}

void expect_near(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double largest = expected[i].abs().max().item<double>();
    EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 0.02 * largest) << i;
  }
}

TEST(ActivationCheckpoint, MayBeNestedUnderAutocast) {
  const auto plain = [](Block& inner, Block& outer, const torch::Tensor& x) { return outer(inner(x)); };
  const auto nested = [](Block& inner, Block& outer, const torch::Tensor& x) {
    auto parameters = inner->parameters();
    for (const auto& parameter : outer->parameters()) parameters.push_back(parameter);
    const auto both = [inner, outer](const std::vector<torch::Tensor>& tensors) mutable {
      return std::vector<torch::Tensor>{outer(activation_checkpoint(inner, tensors[0]))};
    };
    return activation_checkpoint(both, {x}, parameters).front();
  };
  expect_near(gradients_under_autocast(nested), gradients_under_autocast(plain));
}

TEST(ActivationCheckpoint, UnderAutocastAWeightMayBeUsedInsideAndOutside) {
  const auto forward = [](bool checkpointed) {
    return [checkpointed](Block& shared, Block& other, const torch::Tensor& x) {
      return shared(other(checkpointed ? activation_checkpoint(shared, x) : shared(x)));
    };
  };
  expect_near(gradients_under_autocast(forward(true)), gradients_under_autocast(forward(false)));
}

TEST(ActivationCheckpoint, AParameterWithTwoNamesGetsItsGradientOnce) {
  const auto gradients = [](bool checkpointed) {
    torch::manual_seed(4);
    Block block(0.0);
    torch::nn::Sequential tied(block, block);
    const torch::Tensor x = input();
    const auto y = checkpointed ? activation_checkpoint(tied, x) : tied->forward(x);
    y.square().sum().backward();
    std::vector<torch::Tensor> results = {x.grad()};
    for (const auto& parameter : block->parameters()) results.push_back(parameter.grad());
    return results;
  };
  expect_near(gradients(true), gradients(false));
}

TEST(ActivationCheckpoint, CallsTheFunctionOnceIfNoGradientIsNeeded) {
  Block block(0.0);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(activation_checkpoint(block, input()).requires_grad());
  }
  for (auto& parameter : block->parameters()) parameter.requires_grad_(false);
  EXPECT_FALSE(activation_checkpoint(block, input().detach()).requires_grad());
  EXPECT_EQ(block->calls, 2);
}

TEST(ActivationCheckpoint, SecondDerivativesAreRefused) {
  Block block(0.0);
  const torch::Tensor x = input();
  const torch::Tensor y = activation_checkpoint(block, x).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, {}, /*create_graph=*/true), std::exception);
}

TEST(ActivationCheckpoint, AFunctionThatChangesItsResultsIsRefused) {
  int calls = 0;
  const auto y = activation_checkpoint(
      [&](const std::vector<torch::Tensor>& in) {
        return std::vector<torch::Tensor>{in[0].slice(0, 0, ++calls)};
      },
      {input()}, {});
  try {
    y.front().sum().backward();
    FAIL() << "the shapes differ";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("another shape"));
  }
}

}  // namespace
}  // namespace lockstep
