// The simulated device for LibTorch itself: what it computes is what the CPU computes, and its memory, streams and
// events are seen by the race detector.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tests/device/simulation.h"

namespace lockstep::simulated {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const torch::Device kDevice(torch::kPrivateUse1, 0);

c10::Stream other_stream() {
  return c10::impl::getDeviceGuardImpl(torch::kPrivateUse1)->getStreamFromGlobalPool(kDevice, false);
}

TEST(SimulatedTorch, TensorsMoveToTheDeviceAndBack) {
  const auto host = torch::randn({3, 5});
  const auto device = host.to(kDevice);
  EXPECT_EQ(device.device().str(), "simulated:0");
  EXPECT_TRUE(torch::equal(device.cpu(), host));
  EXPECT_TRUE(torch::equal(device.t().to(torch::kDouble).cpu(), host.t().to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(host.t().to(kDevice).cpu(), host.t()));
  EXPECT_EQ(device.sum().item<float>(), host.sum().item<float>());
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimulatedTorch, AModelComputesWhatTheCpuComputes) {
  torch::nn::Sequential model(torch::nn::Linear(6, 16), torch::nn::BatchNorm1d(16), torch::nn::GELU(),
                              torch::nn::Linear(16, 4));
  const auto input = torch::randn({8, 6});
  const auto target = torch::randint(4, {8}, torch::kLong);
  const auto train = [&](torch::Device device) {
    const auto copied = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone(device));
    torch::optim::AdamW optimizer(copied->parameters(), torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(copied->forward(input.to(device)), target.to(device)).backward();
      optimizer.step();
    }
    std::vector<torch::Tensor> results;
    for (const auto& tensor : copied->parameters()) results.push_back(tensor.cpu());
    for (const auto& tensor : copied->buffers()) results.push_back(tensor.cpu());
    return results;
  };
  const auto expected = train(torch::kCPU);
  const auto found = train(kDevice);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimulatedTorch, ItsRandomNumbersHaveTheirOwnGenerator) {
  torch::manual_seed(5);
  const auto first = torch::randn({4}, kDevice).cpu();
  const auto host = torch::randn({4});
  torch::manual_seed(5);
  EXPECT_TRUE(torch::equal(torch::randn({4}), host));
  EXPECT_TRUE(torch::equal(torch::randn({4}, kDevice).cpu(), first));
  EXPECT_FALSE(torch::equal(torch::dropout(torch::ones({64}, kDevice), 0.5, true).cpu(),
                            torch::dropout(torch::ones({64}, kDevice), 0.5, true).cpu()));
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST(SimulatedTorch, AKernelOnAnotherStreamMustWait) {
  auto tensor = torch::zeros({100}, kDevice);
  const c10::Stream other = other_stream();
  for (const bool waits : {true, false}) {
    tensor.add_(1);
    c10::Event done(torch::kPrivateUse1);
    done.record(c10::impl::getDeviceGuardImpl(torch::kPrivateUse1)->getStream(kDevice));
    if (waits) done.block(other);
    {
      const c10::StreamGuard guard(other);
      EXPECT_EQ((tensor + 1).numel(), 100);
    }
    if (waits) {
      EXPECT_THAT(take_findings(), IsEmpty());
    } else {
      EXPECT_THAT(take_findings(), Contains(HasSubstr("race: aten::add")));
    }
    other.synchronize();
  }
}

TEST(SimulatedTorch, MemoryOfAnotherStreamMustBeRecorded) {
  const c10::Stream other = other_stream();
  for (const bool records : {true, false}) {
    auto tensor = torch::zeros({100}, kDevice);
    c10::Event made(torch::kPrivateUse1);
    made.record(c10::impl::getDeviceGuardImpl(torch::kPrivateUse1)->getStream(kDevice));
    made.block(other);
    {
      const c10::StreamGuard guard(other);
      EXPECT_EQ((tensor + 1).numel(), 100);
    }
    if (records) tensor.record_stream(other);
    tensor = torch::Tensor();
    if (records) {
      EXPECT_THAT(take_findings(), IsEmpty());
    } else {
      EXPECT_THAT(take_findings(), Contains(HasSubstr("race: the free of memory")));
    }
    other.synchronize();
  }
}

TEST(SimulatedTorch, PageLockedMemoryIsCopiedAsynchronously) {
  const auto pinned = torch::ones({1000}, torch::TensorOptions().pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  const auto copied = pinned.to(kDevice, /*non_blocking=*/true);
  access_from_host(pinned.data_ptr(), pinned.nbytes(), true, "the program");
  EXPECT_THAT(take_findings(), Contains(HasSubstr("race: the program at")));
  EXPECT_EQ(copied.sum().item<float>(), 1000);
  access_from_host(pinned.data_ptr(), pinned.nbytes(), true, "the program");
  EXPECT_THAT(take_findings(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::simulated
