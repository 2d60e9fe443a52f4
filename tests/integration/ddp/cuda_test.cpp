// DistributedDataParallel on GPUs or simulated ones (tests/device), one for each rank of a node. Skipped if there are fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/ddp/hooks/compression.h"
#include "tests/integration/ddp/models.h"
#include "tests/integration/device_for_tests.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {
namespace {

class OnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto type = device().type();
    const int devices = device().is_cpu() ? 0 : device_count(type);
    if (any_rank(devices < world().local_size())) {
      GTEST_SKIP() << "fewer devices than ranks on a node, or LibTorch without its CUDA libraries ("
                   << devices << " seen)";
    }
  }

  static torch::Device device() { return device_for_tests(world().local_rank()); }

  // A rank's rows of a step.
  static torch::Tensor rows_of(int rank, int step) {
    return rows(2 + rank, static_cast<std::uint64_t>(100 * step + rank));
  }

  // The gradients of one process with all rows, on the CPU.
  static std::vector<torch::Tensor> expected(Net& whole, int step) {
    whole->zero_grad();
    std::int64_t tokens = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto inputs = rows_of(rank, step);
      sum_of_squares(whole(inputs), torch::ones_like(inputs)).backward();
      tokens += inputs.size(0);
    }
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : whole->parameters()) {
      gradients.push_back(parameter.grad() / static_cast<double>(tokens));
    }
    return gradients;
  }

  static void expect_steps_like_one_process(Net net, const DistributedDataParallelOptions& options) {
    Net whole = copy_of(net);
    net->to(device());
    DistributedDataParallel ddp(net, world(), options);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      const auto inputs = rows_of(world().rank(), step).to(device());
      ddp.backward(sum_of_squares(ddp(inputs), torch::ones_like(inputs)), inputs.size(0));
      const auto gradients = expected(whole, step);
      const auto parameters = net->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(parameters[i].grad().device(), device());
        EXPECT_TRUE(torch::allclose(parameters[i].grad().cpu(), gradients[i], 1e-10, 1e-12))
            << "step " << step;
        EXPECT_TRUE(same_bits_everywhere(parameters[i].grad().cpu()));
      }
    }
  }
};

TEST_F(OnGpus, GradientsAreThoseOfOneProcess) {
  torch::manual_seed(7);
  expect_steps_like_one_process(Net(), small_buckets());
}

TEST_F(OnGpus, GradientsAreThoseOfOneProcessWithoutViewsAndWithUnusedParameters) {
  torch::manual_seed(7);
  auto options = small_buckets();
  options.gradient_as_bucket_view = false;
  options.find_unused_parameters = true;
  expect_steps_like_one_process(Net(), options);
}

TEST_F(OnGpus, EveryRankStartsWithTheModelOfRankZero) {
  torch::manual_seed(static_cast<std::uint64_t>(world().rank()));
  Net net;
  net->to(device());
  const DistributedDataParallel ddp(net, world(), small_buckets());
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter.cpu()));
}

TEST_F(OnGpus, HooksSumGradients) {
  torch::manual_seed(7);
  Net net;
  Net whole = copy_of(net);
  net->to(device());
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.register_comm_hook(bf16_compress_hook());
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    const auto inputs = rows_of(world().rank(), step).to(device());
    ddp.backward(sum_of_squares(ddp(inputs), torch::ones_like(inputs)), inputs.size(0));
    const auto gradients = expected(whole, step);
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const double largest = gradients[i].abs().max().item<double>();
      EXPECT_LT((parameters[i].grad().cpu() - gradients[i]).abs().max().item<double>(), largest / 32);
    }
  }
}

TEST_F(OnGpus, AModelOnTwoDevicesIsRefusedByName) {
  Net net;
  net->to(device());
  net->register_buffer("table", torch::empty({2}));
  EXPECT_THAT(error_of([&] { const DistributedDataParallel ddp(net, world()); }),
              ::testing::HasSubstr("buffer 'table' is on cpu"));
}

}  // namespace
}  // namespace lockstep::testing
