// What the host waits for when a model on a device is trained: nothing in a step, but for the numbers that the page about
// GPUs names (docs/users/gpus.md).
#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/hooks/compression.h"
#include "runtime/train/sync_batch_norm.h"
#include "tests/device/device_of_rank.h"
#include "tests/device/simulation.h"
#include "tests/integration/train/checkpoint_world.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

torch::Tensor input_of(int rank, int step) {
  return rows(2 + rank, static_cast<std::uint64_t>(10 * step + rank)).to(device());
}

// The synchronisations of this rank with its device while `run` runs.
template <typename Run>
int waits_of(const Run& run) {
  simulated::drop_wait(simulated::Wait::host, 0);
  run();
  return simulated::waits(simulated::Wait::host);
}

template <typename Module = NetImpl>
struct Training {
  explicit Training(torch::nn::ModuleHolder<Module> made,
                    DistributedDataParallelOptions options = small_buckets())
      : net((made->to(device()), made)), ddp(net, world(), options), optimizer(net->parameters(), 0.01) {}

  void backward(int step) {
    optimizer.zero_grad();
    const auto input = input_of(world().rank(), step);
    ddp.backward(ddp(input.to(net->parameters().front().dtype())).square().sum(), input.size(0) * (step + 1));
  }

  torch::nn::ModuleHolder<Module> net;
  DistributedDataParallel<Module> ddp;
  torch::optim::SGD optimizer;
};

class Waits : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(simulated::take_findings(), IsEmpty()); }

  // Each of the steps 3 to 5. The first ones settle the layout of buckets and how gradients are averaged.
  template <typename Step>
  static void expect_waits(int expected, const Step& run_step) {
    for (int step = 0; step < 6; ++step) {
      const auto input = input_of(world().rank(), step);
      const int waits = waits_of([&] { run_step(step, input); });
      EXPECT_EQ(waits, step < 3 ? waits : expected) << "step " << step;
    }
  }
};

TEST_F(Waits, AreNoneInAStepThatAveragesByCount) {
  Training training((Net()));
  expect_waits(0, [&](int step, const torch::Tensor& input) {
    training.ddp.backward(training.ddp(input).square().sum(), input.size(0) * (step + 1));
    training.optimizer.step();
    training.optimizer.zero_grad();
  });
}

TEST_F(Waits, AreNoneInAStepWithAccumulationAndARankWithoutData) {
  Training training((Net()));
  expect_waits(0, [&](int step, const torch::Tensor& input) {
    {
      const auto hold = training.ddp.no_sync();
      training.ddp.backward(training.ddp(input).square().sum(), 3);
    }
    if (world().rank() == step % world().size()) {
      training.ddp.skip();
    } else {
      training.ddp.backward(training.ddp(input).square().sum(), 5);
    }
    training.optimizer.zero_grad();
  });
}

TEST_F(Waits, AreNoneInAStepWithAHook) {
  Training training((Net()));
  training.ddp.register_comm_hook(bf16_compress_hook());
  expect_waits(0, [&](int step, const torch::Tensor& input) {
    training.ddp.backward(training.ddp(input).square().sum(), input.size(0) * (step + 1));
    training.optimizer.zero_grad();
  });
}

// Its buckets are multiplied by the factor after backward, and no operation of the hook has waited for that.
struct NoOperation : CommHook {
  CommFuture start(GradBucket& /*bucket*/, comm::Communicator& /*ranks*/) override { return {}; }
};

TEST_F(Waits, OfTheStreamForTheFactorAreMadeForAHookWithoutOperations) {
  Training training((Net()));
  training.ddp.register_comm_hook(std::make_shared<NoOperation>());
  for (int step = 0; step < 4; ++step) training.backward(step);
}

// So that a micro-batch under no_sync can become a CUDA graph: during capture no thread may ask the device for anything.
TEST_F(Waits, AndQueriesAreNoneInAMicroBatchWithoutSynchronisation) {
  Training training((Net()));
  for (int step = 0; step < 3; ++step) training.backward(step);
  training.optimizer.zero_grad();
  const auto input = input_of(world().rank(), 3);
  any_rank(false);  // the message of the last step has been received
  EXPECT_GT(input.sum().item<double>() + 1e9, 0);
  world()
      .communicator_of_device(device().index())
      .barrier("the last step")
      ->wait();  // its watchdog has seen the ends
  simulated::take_calls_unfit_for_capture();
  {
    const auto hold = training.ddp.no_sync();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
      training.ddp.backward(training.ddp(input).square().sum(), 3);
  }
  EXPECT_EQ(simulated::take_calls_unfit_for_capture(), 0);
  (void)input.sum().item<double>();
  EXPECT_GT(simulated::take_calls_unfit_for_capture(), 0) << "a call that waits is seen";
  training.backward(4);
}

// Rank 1 begins its backward when that of rank 0 has ended.
TEST_F(Waits, AreNotForOtherRanks) {
  if (world().size() != 2) GTEST_SKIP() << "with 2 ranks only";
  const SharedFolder folder;
  std::filesystem::create_directories(folder.path());
  Training training((Net()));
  for (int step = 0; step < 6; ++step) {
    const auto input = input_of(world().rank(), step);
    const auto loss = training.ddp(input).square().sum();
    const auto token = folder / ("after step " + std::to_string(step));
    if (world().rank() == 1 && step >= 3) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!std::filesystem::exists(token) && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_TRUE(std::filesystem::exists(token)) << "rank 0 waits in the backward of step " << step;
    }
    training.ddp.backward(loss);
    std::ofstream(token) << "done";
    training.optimizer.zero_grad();
  }
}

TEST_F(Waits, OfClippingAreOnlyForItsNumber) {
  Training training((Net()));
  double norm = 0;
  expect_waits(0, [&](int step, const torch::Tensor& input) {
    training.optimizer.zero_grad();
    training.ddp.backward(training.ddp(input).square().sum(), input.size(0) * (step + 1));
    clip_grad_norm(training.optimizer, 1e-3);
    training.optimizer.step();
  });
  // The parameters, clipped, are those of the CPU.
  for (const double type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    training.backward(6);
    auto alone = copy_of(Net());
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      alone->parameters()[i].mutable_grad() = training.net->parameters()[i].grad().cpu();
    const double expected = clip_grad_norm(alone->parameters(), 1e-3, {.norm_type = type});
    EXPECT_EQ(waits_of([&] { norm = clip_grad_norm(training.optimizer, 1e-3, {.norm_type = type}); }), 1);
    EXPECT_NEAR(norm, expected, 1e-12 * expected);
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(training.net->parameters()[i].grad().cpu(), alone->parameters()[i].grad(),
                                  1e-10, 1e-15));
    }
  }
}

TEST_F(Waits, OfAGradScalerWithClippingAreForOneNumber) {
  Training training((Net()));
  GradScaler scaler(world(), {.initial_scale = 4});
  expect_waits(1, [&](int step, const torch::Tensor& input) {
    training.ddp.backward(scaler.scale(training.ddp(input).square().sum()), input.size(0) * (step + 1));
    scaler.unscale(training.optimizer);
    clip_grad_norm(training.optimizer, 1.0);
    EXPECT_TRUE(scaler.step(training.optimizer));
    scaler.update();
    training.optimizer.zero_grad();
  });
}

TEST_F(Waits, AreNoneInSyncBatchNorm) {
  SyncBatchNorm norm(world(), torch::nn::BatchNormOptions(6).momentum(torch::nullopt));
  norm->to(torch::kDouble);
  torch::nn::BatchNorm1d whole(norm->options);
  whole->to(torch::kDouble);
  norm->to(device());
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < world().size(); ++rank) all.push_back(input_of(rank, 0).cpu());
  const auto expected = whole(torch::cat(all));
  const auto mine = input_of(world().rank(), 0);
  torch::Tensor output;
  EXPECT_EQ(waits_of([&] {
              output = norm(mine);
              output.square().sum().backward();
            }),
            0);
  const auto sizes = [](int ranks) { return ranks * 2 + ranks * (ranks - 1) / 2; };
  EXPECT_TRUE(torch::allclose(output.cpu(),
                              expected.slice(0, sizes(world().rank()), sizes(world().rank() + 1)), 1e-10));
  EXPECT_TRUE(torch::allclose(norm->running_var.cpu(), whole->running_var, 1e-10));
}

TEST_F(Waits, OfAComparisonOfTheRanksParametersAreForOneNumber) {
  auto options = small_buckets();
  options.check_replicas_every = 1;
  Training training((Net()), options);
  expect_waits(world().size() > 1 ? 1 : 0, [&](int step, const torch::Tensor& input) {
    training.ddp.backward(training.ddp(input).square().sum(), input.size(0) * (step + 1));
    training.optimizer.step();
    training.optimizer.zero_grad();
  });
  if (world().size() == 1) return;
  {
    const torch::NoGradGuard no_grad;
    if (world().rank() == 1) training.net->out_bias.add_(1);
  }
  EXPECT_THAT(error_of([&] { training.backward(6); }), HasSubstr("'out_bias' by up to 1"));
}

TEST_F(Waits, TheLossIsScaledByTheTotalOfTheStepBeforeTheLastOne) {
  torch::nn::Linear layer(torch::nn::LinearOptions(6, 1).bias(false));
  layer->to(torch::kDouble);
  Training training(layer);
  const std::vector<std::int64_t> counts = {1, 1, 16, 256, 4096, 65536};
  for (int step = 0; step < 6; ++step) {
    const auto input = input_of(world().rank(), 0);
    const std::int64_t count = counts[static_cast<std::size_t>(step)];
    double scale = 0;
    auto loss = training.ddp(input).sum();
    loss.register_hook([&](const torch::Tensor& gradient) { scale = gradient.item<double>(); });
    training.ddp.backward(loss, count);
    const auto expected = counts[static_cast<std::size_t>(std::max(0, step - 2))] * world().size();
    EXPECT_EQ(scale,
              step == 0 ? 1.0 / 1024 : std::exp2(-std::round(std::log2(static_cast<double>(expected)))))
        << step;
    EXPECT_EQ(training.ddp.tokens_of_last_step(), count * world().size())
        << "exact, because the program asks";
    training.optimizer.zero_grad();
  }
}

TEST_F(Waits, HalvesAreMultipliedByTheFactorOfTheDevice) {
  torch::nn::Linear layer(6, 3);
  layer->to(torch::kBFloat16);
  Training training(layer);
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    const std::int64_t count = 3 + 2 * step + world().rank();
    training.ddp.backward(layer->bias.sum() * static_cast<double>(count) + 0 * layer->weight.sum(), count);
    EXPECT_TRUE(torch::allclose(layer->bias.grad().cpu().to(torch::kFloat), torch::ones({3}), 0.02)) << step;
  }
}

// A bucket's memory is LibTorch's, and is not used again before the operation on it has ended.
TEST_F(Waits, ABucketLivesUntilItsLastEvent) {
  auto& communicator = ddp::communicator_for(world(), device());
  for (int i = 0; i < 5; ++i) {
    ddp::FlatBucket bucket(communicator, "bucket", {torch::ones({1000}, torch::TensorOptions(device()))});
    EXPECT_EQ(bucket.tensor().storage().data_ptr().get_deleter(),
              c10::GetAllocator(device().type())->raw_deleter());
    communicator.all_reduce(bucket.buffer(), "bucket");
  }
}

}  // namespace
}  // namespace lockstep::testing
