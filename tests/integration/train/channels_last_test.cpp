// A model in channels_last trains under DistributedDataParallel as the same model in the usual format.
#include <gtest/gtest.h>

#include "runtime/train/settings.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

struct PicturesImpl : torch::nn::Module {
  PicturesImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    second = register_module("second", torch::nn::Conv2d(6, 4, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& pictures) { return second(torch::relu(norm(first(pictures)))); }
  torch::nn::Conv2d first{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Conv2d second{nullptr};
};
TORCH_MODULE(Pictures);

TEST(ChannelsLast, GradientsAreEqualUnderDistributedDataParallel) {
  torch::manual_seed(4);
  Pictures plain;
  Pictures last;
  copy_parameters(*plain, *last);
  to_channels_last(*last);
  DistributedDataParallel plain_ddp(plain, world(), small_buckets());
  DistributedDataParallel last_ddp(last, world(), small_buckets());
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  torch::optim::SGD last_optimizer(last->parameters(), 0.1);
  const auto pictures =
      torch::randn({2, 3, 8, 8}, at::detail::createCPUGenerator(world().rank()), torch::kDouble);
  for (int step = 0; step < 3; ++step) {
    plain_ddp.backward(plain_ddp(pictures).square().sum(), 2);
    last_ddp.backward(last_ddp(to_channels_last(pictures)).square().sum(), 2);
    EXPECT_LT(gradient_difference(*last, *plain), 1e-12);
    plain_optimizer.step();
    last_optimizer.step();
    plain_optimizer.zero_grad();
    last_optimizer.zero_grad();
  }
  EXPECT_TRUE(last->first->weight.is_contiguous(torch::MemoryFormat::ChannelsLast))
      << "also after the training";
}

}  // namespace
}  // namespace lockstep::testing
