// A memory warm-up leaves no trace under DistributedDataParallel, and a bad loss names step and rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/train/debug.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// A model with dropout and batch norm, and a training of a few steps whose losses are compared.
struct NoisyImpl : torch::nn::Module {
  NoisyImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return drop(norm(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Noisy);

std::vector<double> losses(bool warmed_up) {
  torch::manual_seed(2);
  Noisy model;
  DistributedDataParallel ddp(model, world(), small_buckets());
  const auto warm_up = [&] {
    if (warmed_up) memory_warm_up(*model, [&] { return model->forward(rows(64, 9)).square().sum(); });
  };
  warm_up();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<double> result;
  for (int step = 0; step < 4; ++step) {
    for (const bool last : {false, true}) {
      const auto hold = ddp.no_sync_unless(last);
      const auto loss = ddp(rows(4, static_cast<std::uint64_t>(10 * step + world().rank()))).square().sum();
      ddp.backward(loss, 4);
      result.push_back(loss.item<double>());
      if (step == 2) warm_up();  // with gradients that are accumulated, and with those of the whole step
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& buffer : model->buffers())
    result.push_back(buffer.sum().to(torch::kDouble).item<double>());
  return result;
}

TEST(MemoryWarmUp, LeavesATrainingAsItIs) {
  EXPECT_EQ(losses(true), losses(false));
}

TEST(CheckLoss, NamesStepAndRank) {
  check_loss(world(), 0.5, 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto error = error_of([&] { check_loss(world(), nan, 12); });
  EXPECT_THAT(error, HasSubstr("the loss is nan in step 12 on rank " + std::to_string(world().rank())));
  EXPECT_THAT(error_of([&] { check_loss(world(), nan, 12, [] { return std::string("it began here"); }); }),
              HasSubstr("it began here"));
}

}  // namespace
}  // namespace lockstep::testing
