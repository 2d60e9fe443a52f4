// The fused optimizers make LibTorch's steps on a device, with its fused kernels and, where it has none, with the foreach
// ones, and the host waits for nothing. Clipping and GradScaler launch a few kernels for all gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>

#include "runtime/ddp/operation_observer.h"
#include "runtime/train/fused_optimizer.h"
#include "runtime/train/grad_scaler.h"
#include "tests/device/backend/backend.h"
#include "tests/device/device_of_rank.h"
#include "tests/device/simulation.h"

namespace lockstep::testing {
namespace {

using ::testing::IsEmpty;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

int fused_calls = 0;

void compute_fused(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  ++fused_calls;
  simulated::compute_on_host(op, keys, stack);
}

// The simulated device has fused kernels, as a GPU does, while this exists.
class FusedKernels {
 public:
  FusedKernels() {
    for (const char* name : {"_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_foreach_norm.Scalar",
                             "_foreach_mul_.Tensor", "_amp_foreach_non_finite_check_and_unscale_"})
      kernels_.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute_fused>());
  }

 private:
  torch::Library kernels_{torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
};

class FusedOnDevice : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(simulated::take_findings(), IsEmpty()); }
};

std::vector<torch::Tensor> parameters(torch::ScalarType type) {
  torch::manual_seed(2);
  std::vector<torch::Tensor> result = {
      torch::randn({37, 11}), torch::randn({}), torch::randn({5}),
      torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast), torch::randn({4})};
  for (auto& parameter : result) parameter = parameter.to(type).requires_grad_();
  return result;
}

// The last parameter has a gradient in every second step only, so its steps have other numbers.
std::vector<torch::Tensor> gradients(const std::vector<torch::Tensor>& all, std::uint64_t step) {
  torch::manual_seed(100 + step);
  std::vector<torch::Tensor> result;
  for (const auto& parameter : all)
    result.push_back(torch::randn(parameter.sizes(), parameter.scalar_type()));
  if (step % 2 == 1) result.back() = torch::Tensor();
  return result;
}

template <typename Fused, typename Theirs, typename Options>
void expect_same_steps(const Options& options, torch::ScalarType type, double tolerance) {
  auto theirs = parameters(type);
  auto ours = parameters(type);
  for (auto& parameter : ours) parameter = parameter.detach().to(device()).requires_grad_();
  Fused fused(ours, options);
  Theirs libtorch(theirs, options);
  for (std::uint64_t step = 0; step < 8; ++step) {
    const auto new_gradients = gradients(theirs, step);
    for (std::size_t i = 0; i < new_gradients.size(); ++i) {
      theirs[i].mutable_grad() = new_gradients[i];
      ours[i].mutable_grad() = new_gradients[i].defined() ? new_gradients[i].to(device()) : new_gradients[i];
    }
    simulated::drop_wait(simulated::Wait::host, 0);
    fused.step();
    EXPECT_EQ(simulated::waits(simulated::Wait::host), 0);
    libtorch.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double scale = theirs[i].abs().max().template item<double>();
    const double off = (ours[i].cpu() - theirs[i]).abs().max().template item<double>();
    EXPECT_LT(off / std::max(1.0, scale), tolerance) << "parameter " << i << " of " << c10::toString(type);
  }
}

template <typename Fused, typename Theirs, typename Options>
void expect_same_steps(const Options& options) {
  const auto both_types = [&] {
    expect_same_steps<Fused, Theirs>(options, torch::kDouble, 1e-12);
    expect_same_steps<Fused, Theirs>(options, torch::kFloat, 2e-5);
    expect_same_steps<Fused, Theirs>(options, torch::kBFloat16, 0.05);
  };
  fused_calls = 0;
  both_types();
  EXPECT_EQ(fused_calls, 0);
  const FusedKernels kernels;
  both_types();
  EXPECT_GE(fused_calls, 3 * 8);
}

TEST_F(FusedOnDevice, SgdMakesLibTorchsSteps) {
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1).weight_decay(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(
      SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1));
  expect_same_steps<FusedSGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST_F(FusedOnDevice, AdamMakesLibTorchsSteps) {
  expect_same_steps<FusedAdam, torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}));
  expect_same_steps<FusedAdam, torch::optim::Adam>(AdamOptions(0.01).amsgrad(true));
}

TEST_F(FusedOnDevice, AdamWMakesLibTorchsSteps) {
  expect_same_steps<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01).weight_decay(0.3).eps(1e-4));
  expect_same_steps<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.01).amsgrad(true));
}

// The number of a parameter's step is in its state alone, so a state may come from a file or another device.
TEST_F(FusedOnDevice, GoesOnFromTheIntegerStepOfItsState) {
  const FusedKernels kernels;
  auto theirs = torch::ones({3}, torch::kDouble).requires_grad_();
  auto ours = torch::ones({3}, torch::kDouble).to(device()).requires_grad_();
  torch::optim::AdamW libtorch({theirs}, AdamWOptions(0.01));
  FusedAdamW fused(std::vector<torch::Tensor>{ours}, AdamWOptions(0.01));
  theirs.mutable_grad() = torch::full({3}, 0.5, torch::kDouble);
  ours.mutable_grad() = theirs.grad().to(device());
  for (int step = 0; step < 3; ++step) libtorch.step();
  using State = torch::optim::AdamWParamState;
  const auto& state = static_cast<const State&>(*libtorch.state().begin()->second);
  auto loaded = std::make_unique<State>();
  loaded->step(state.step());
  loaded->exp_avg(state.exp_avg().to(device()));
  loaded->exp_avg_sq(state.exp_avg_sq().to(device()));
  fused.state()[ours.unsafeGetTensorImpl()] = std::move(loaded);
  {
    const torch::NoGradGuard no_grad;
    ours.copy_(theirs);
  }
  libtorch.step();
  fused.step();
  EXPECT_TRUE(torch::allclose(ours.cpu(), theirs, 1e-13, 1e-13));
  EXPECT_EQ(static_cast<State&>(*fused.state().begin()->second).step(), 4);
}

// The operations that the program calls for so many gradients; each is a launch or a few.
template <typename Run>
int calls_for(int count, std::initializer_list<torch::ScalarType> types, const Run& run) {
  std::vector<torch::Tensor> all;
  for (const auto type : types) {
    for (int i = 0; i < count; ++i) {
      all.push_back(torch::ones({3 + i}, type).to(device()).requires_grad_());
      all.back().mutable_grad() = torch::full({3 + i}, 8, type).to(device());
    }
  }
  torch::optim::SGD optimizer(all, 0.1);
  std::atomic<int> calls = 0;
  {
    const ddp::OperationObserver observer(
        [&](const ddp::Operation& operation) { calls += operation.called_by_program ? 1 : 0; });
    run(optimizer);
  }
  return calls;
}

double first_gradient(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].params()[0].grad().cpu()[0].item<double>();
}

TEST_F(FusedOnDevice, ClippingCallsAsManyOperationsForManyGradientsAsForFew) {
  const FusedKernels kernels;
  const auto clip = [](const torch::optim::SGD& optimizer) { clip_grad_norm(optimizer, 1e-3); };
  const auto types = {torch::kFloat, torch::kDouble};
  EXPECT_EQ(calls_for(40, types, clip), calls_for(4, types, clip));
  calls_for(1, types, [](const torch::optim::SGD& optimizer) {
    clip_grad_norm(optimizer, 1);
    EXPECT_NEAR(first_gradient(optimizer), 1 / std::sqrt(6), 1e-6);
  });
}

TEST_F(FusedOnDevice, UnscalingCallsAsManyOperationsForManyGradientsAsForFew) {
  const FusedKernels kernels;
  const auto unscale = [](torch::optim::SGD& optimizer) {
    GradScaler scaler(world(), {.initial_scale = 4});
    EXPECT_TRUE(scaler.unscale(optimizer));
  };
  EXPECT_EQ(calls_for(40, {torch::kFloat}, unscale), calls_for(4, {torch::kFloat}, unscale));
  calls_for(2, {torch::kFloat, torch::kDouble}, [&](torch::optim::SGD& optimizer) {
    unscale(optimizer);
    EXPECT_EQ(first_gradient(optimizer), 2);
  });
  for (const std::size_t bad : {1, 3}) {  // a float, a double
    calls_for(2, {torch::kFloat, torch::kDouble}, [&](torch::optim::SGD& optimizer) {
      optimizer.param_groups()[0].params()[bad].mutable_grad()[1] = std::nan("");
      GradScaler scaler(world());
      EXPECT_FALSE(scaler.unscale(optimizer));
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
