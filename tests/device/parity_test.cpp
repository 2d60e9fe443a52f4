// DistributedOptimizer on a device gives the results of one process on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/simulation.h"
#include "tests/integration/device_for_tests.h"
#include "tests/integration/train/checkpoint_world.h"
#include "tests/integration/train/optimizer_archive.h"

namespace lockstep::testing {
namespace {

using ::testing::IsEmpty;

class Parity : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(simulated::take_findings(), IsEmpty()); }
  static torch::Device device() { return device_for_tests(world().local_rank()); }
};

TEST_F(Parity, TheCheckOfAModelNamesProductsOfFloatsWithoutTf32) {
  const auto said = [](torch::ScalarType type, const char* precision) {
    at::globalContext().setFloat32MatmulPrecision(precision);
    torch::nn::Linear net(8, 8);
    net->to(device(), type);
    ::testing::internal::CaptureStderr();
    {
      DistributedDataParallel ddp(net, world(), {.check_model = true});
      ddp(torch::ones({8, 8}, torch::TensorOptions(device()).dtype(type))).sum().backward();
    }
    at::globalContext().setFloat32MatmulPrecision("highest");  // the default
    return ::testing::internal::GetCapturedStderr().find("without TF32") != std::string::npos;
  };
  const bool prints = world().rank() == 0;
  EXPECT_EQ(said(torch::kFloat, "highest"), prints);
  EXPECT_FALSE(said(torch::kFloat, "high"));
  EXPECT_FALSE(said(torch::kDouble, "highest"));
}

template <typename AdamW>
class ShardedAdamW : public Parity {};
using AdamWs = ::testing::Types<torch::optim::AdamW, FusedAdamW>;
TYPED_TEST_SUITE(ShardedAdamW, AdamWs);

TYPED_TEST(ShardedAdamW, IsAdamWInOneProcess) {
  const auto device = Parity::device();
  torch::manual_seed(7);
  Net net;
  Net alone = copy_of(net);
  net->to(device);
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<TypeParam> optimizer(ddp, kDecayingAdamW);
  torch::optim::AdamW reference(alone->parameters(), kDecayingAdamW);
  GradScaler scaler(world(), {.initial_scale = 4});
  const auto train = [&](int step) {
    auto whole = torch::zeros({}, torch::kDouble);
    std::int64_t tokens = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto input = rows(2 + rank, static_cast<std::uint64_t>(10 * step + rank));
      whole = whole + alone(input).square().sum();
      tokens += input.size(0);
      if (rank == world().rank())
        ddp.backward(scaler.scale(ddp(input.to(device)).square().sum()), input.size(0));
    }
    (whole / static_cast<double>(tokens)).backward();
    EXPECT_TRUE(scaler.unscale(optimizer));
    const double norm = optimizer.clip_grad_norm(0.5);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5), 1e-10 * norm);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    reference.step();
    optimizer.zero_grad();
    reference.zero_grad();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      ASSERT_EQ(net->parameters()[i].device(), device);
      ASSERT_TRUE(torch::allclose(net->parameters()[i].cpu(), alone->parameters()[i].detach(), 1e-10, 1e-12))
          << "step " << step;
    }
  };
  for (int step = 0; step < 4; ++step) train(step);
  // Its checkpoint is that of the CPU, and gives the same steps.
  const SharedFolder folder;
  if (world().rank() == 0) std::filesystem::create_directories(folder.path());
  save_to_file(optimizer, folder / "state");
  const auto state = state_on_rank_0(optimizer);
  if (world().rank() == 0) {
    EXPECT_TRUE(state.parameters.at("out_bias").at("exp_avg").toTensor().is_cpu());
  }
  load_from_file(optimizer, folder / "state");
  for (int step = 4; step < 6; ++step) train(step);
}

}  // namespace
}  // namespace lockstep::testing
