// Those parts of the toolkit that depend on the device, on a GPU or a simulated one (tests/device) if there is one, else
// on the CPU. LOCKSTEP_TEST_DEVICE names the type of device that there must be.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "exporters/record/record.h"
#include "runtime/train/activation_checkpoint.h"
#include "runtime/train/debug.h"
#include "tests/integration/device_for_tests.h"
#include "tests/integration/train/checkpoint_world.h"

namespace lockstep::testing {
namespace {

torch::Device device() {
  return device_for_tests(world().local_rank());
}

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const int devices = device_count(device().type());
    if (any_rank(!device().is_cpu() && devices < world().local_size()))
      GTEST_SKIP() << "fewer devices (" << devices << ") than ranks on a node";
  }
};

/// A float network with dropout, whose random numbers come from the device.
struct DropNetImpl : torch::nn::Module {
  DropNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 32));
    last = register_module("last", torch::nn::Linear(32, 6));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return last(torch::dropout(torch::relu(first(input)), 0.5, is_training()));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(DropNet);

torch::Tensor float_rows(std::uint64_t seed) {
  return rows(4, seed + static_cast<std::uint64_t>(world().rank())).to(torch::kFloat).to(device());
}

std::vector<torch::Tensor> on_cpu(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors)
    copies.push_back(tensor.detach().to(torch::kCPU, tensor.scalar_type(), false, true));
  return copies;
}

TEST_F(OnDevice, ScaledGradientsOfHalfAreThoseOfFloat) {
  torch::manual_seed(3);
  DropNet net;
  net->eval();
  net->to(device());
  const auto input = float_rows(1);
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.backward(ddp(input).square().sum(), 4);
  const auto exact = on_cpu({net->first->weight.grad(), net->last->weight.grad()});
  net->zero_grad();

  GradScaler scaler(world(), {.initial_scale = 1024});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  torch::Tensor loss;
  {
    const Autocast half(device().type(), !device().is_cpu() ? torch::kHalf : torch::kBFloat16);
    const auto output = ddp(input);
    EXPECT_NE(output.scalar_type(), torch::kFloat);
    loss = output.to(torch::kFloat).square().sum();
  }
  ddp.backward(scaler.scale(loss), 4);
  EXPECT_TRUE(scaler.unscale(optimizer));
  const auto scaled = on_cpu({net->first->weight.grad(), net->last->weight.grad()});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double largest = exact[i].abs().max().item<double>();
    EXPECT_GT(largest, 0);
    EXPECT_LT((scaled[i] - exact[i]).abs().max().item<double>(), largest / 16);
  }
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
}

TEST_F(OnDevice, AnInfiniteGradientSkipsTheStep) {
  auto parameter = torch::ones({4}, torch::TensorOptions(device())).requires_grad_();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.5));
  GradScaler scaler(world(), {.initial_scale = 8});
  const bool bad = world().rank() == world().size() - 1;
  parameter.mutable_grad() =
      torch::full_like(parameter, bad ? std::numeric_limits<double>::infinity() : 1.0).detach();
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(parameter.sum().item<double>(), 4);
  EXPECT_EQ(scaler.current_scale(), 4);
}

TEST_F(OnDevice, ActivationCheckpointingDrawsTheSameRandomNumbers) {
  torch::manual_seed(4);
  DropNet net;
  net->to(device());
  const auto input = float_rows(2);
  const auto gradients = [&](bool checkpointed) {
    torch::manual_seed(11);
    net->zero_grad();
    (checkpointed ? activation_checkpoint(net, input) : net(input)).square().sum().backward();
    return on_cpu({net->first->weight.grad(), net->last->weight.grad()});
  };
  const auto whole = gradients(false);
  const auto recomputed = gradients(true);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(torch::allclose(recomputed[i], whole[i], 1e-5, 1e-6));
}

// Each token takes 4 KiB for its values and as much for each result of the loss.
TEST_F(OnDevice, TheLargestCapStaysWithinTheLimit) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->to(device());
  std::uint64_t largest = 0;
  const auto loss = [&](std::uint64_t cap) {
    largest = std::max(largest, cap);
    const auto values = torch::ones({static_cast<std::int64_t>(cap), 1024}, torch::TensorOptions(device()));
    return (values * model->weight.view({1})).square().sum();
  };
  const auto cap_for = [&](std::uint64_t mebibytes, double reserve) {
    return find_largest_cap(world(), *model, loss, {.limit_bytes = mebibytes << 20U, .reserve = reserve});
  };
  const auto small = cap_for(200, 0.15);
  EXPECT_GT(small, 4000U) << "170 MiB hold this many tokens 10 times";
  EXPECT_LT(small, 22000U) << "170 MiB hold this many tokens twice";
  EXPECT_LT(largest, 30000U) << "no cap that does not fit is tried";
  EXPECT_LT(cap_for(200, 0.7), small);
}

struct Training {
  explicit Training(const std::filesystem::path& folder, CheckpointerOptions options = {})
      : net(made()),
        ddp(net, world(), small_buckets()),
        optimizer(net->parameters(), 0.01),
        checkpointer(world(), folder, options) {
    checkpointer.add("model", *net);
    checkpointer.add("optimizer", optimizer);
  }

  void train(int from, int until) {
    for (int step = from; step < until; ++step) {
      optimizer.zero_grad();
      ddp.backward(ddp(float_rows(static_cast<std::uint64_t>(100 + step))).square().sum(), 4);
      optimizer.step();
    }
  }

  static DropNet made() {
    DropNet net;
    net->to(device());
    return net;
  }

  DropNet net;
  DistributedDataParallel<DropNetImpl> ddp;
  torch::optim::AdamW optimizer;
  Checkpointer checkpointer;
};

TEST_F(OnDevice, AResumedTrainingContinuesWithTheSameRandomNumbers) {
  const SharedFolder folder;
  torch::manual_seed(5);
  Training whole(folder / "run");
  whole.train(0, 3);
  whole.checkpointer.save(3);
  whole.train(3, 6);
  whole.checkpointer.wait();
  const auto expected = on_cpu(whole.net->parameters());

  torch::manual_seed(77);
  Training resumed(folder / "run", {.read_only = true});
  EXPECT_EQ(resumed.checkpointer.load_latest(), 3);
  resumed.train(3, 6);
  const auto parameters = on_cpu(resumed.net->parameters());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(parameters[i], expected[i], 1e-5, 1e-6)) << i;
}

TEST_F(OnDevice, TheRecordHasTheTimesOfTheDevice) {
  if (world().timer().file().empty()) GTEST_SKIP() << "this job writes no record";
  const auto seconds_of_forward = [] {
    return 1e-9 * static_cast<double>(record::Reader(world().timer().file())
                                          .read()
                                          .counters.phase_ns[record::index(profile::Phase::forward)]);
  };
  DropNet net;
  net->to(device());
  const DistributedDataParallel ddp(net, world());  // from now on the timer records the device's times
  const auto matrix = torch::randn({device().is_cuda() ? 8192 : 512, device().is_cuda() ? 8192 : 512},
                                   torch::TensorOptions(device()));
  const auto work = [&] {
    for (int i = 0; i < 20; ++i) torch::mm(matrix, matrix);
  };
  const auto synchronise = [&] {
    if (!device().is_cpu()) c10::impl::VirtualGuardImpl(device().type()).getStream(device()).synchronize();
  };
  work();  // makes what the library makes once
  synchronise();
  world().timer().begin_step();
  world().timer().end_step({});
  const double before = seconds_of_forward();

  const auto begin = std::chrono::steady_clock::now();
  world().timer().begin_step();
  {
    const auto scope = world().timer().phase(profile::Phase::forward);
    work();
  }
  world().timer().end_step({});
  synchronise();
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  world().timer().begin_step();
  world().timer().end_step({});  // records the step before, which the device has finished
  const double forward = seconds_of_forward() - before;
  EXPECT_GT(forward, 0.7 * all);
  EXPECT_LE(forward, 1.05 * all);
}

}  // namespace
}  // namespace lockstep::testing
