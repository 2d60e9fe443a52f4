// The calls that would wait for a GPU are named, and no others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/profile/operator_faults.h"
#include "runtime/train/debug.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(SyncDetector, NamesTheCallsOfTheProgram) {
  torch::nn::Linear layer(4, 4);
  const auto x = torch::ones({2, 4});
  SyncDetector detector(torch::kCPU);
  const auto loss = layer(x).square().sum();
  loss.backward();
  EXPECT_EQ(detector.text(), "no synchronising call");
  loss.item<float>();
  loss.item<float>();
  static_cast<void>(torch::allclose(x, x));
  EXPECT_EQ(x.index({x > 0}).numel(), 8);
  EXPECT_THAT(detector.calls(),
              ElementsAre(Pair("aten::allclose", 1), Pair("aten::index", 1), Pair("aten::item", 2)));
  EXPECT_EQ(detector.text(), "aten::allclose (once), aten::index (once), aten::item (2 times)");
}

TEST(SyncDetector, CallsInBackwardAreNamedToo) {
  struct Reads : torch::autograd::Function<Reads> {
    static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                   torch::autograd::variable_list gradients) {
      static_cast<void>(gradients[0].sum().item<float>());
      return gradients;
    }
  };
  const auto x = torch::ones({2}, torch::requires_grad());
  const auto loss = Reads::apply(x).sum();
  SyncDetector detector(torch::kCPU);
  loss.backward();
  EXPECT_EQ(detector.calls().count("aten::item"), 1U);
}

TEST(SyncDetector, CallsOnOtherDevicesAreNotNamed) {
  SyncDetector detector(torch::kCUDA);
  torch::ones({1}).item<float>();
  EXPECT_EQ(detector.text(), "no synchronising call");
}

TEST(SyncDetector, CallsAfterItsEndAreNotSeen) {
  { const SyncDetector detector(torch::kCPU); }
  torch::ones({1}).item<float>();
  const SyncDetector detector(torch::kCPU);
  EXPECT_TRUE(detector.calls().empty());
}

TEST(SyncDetector, TwoAtATimeAreRefused) {
  const SyncDetector detector(torch::kCPU);
  EXPECT_THROW(SyncDetector(torch::kCPU), UsageError);
}

// A copy between host and device waits unless non_blocking is set. The tensors here have a device, and no memory.
TEST(SyncDetector, CopiesBetweenHostAndDeviceWait) {
  const auto on = [](torch::DeviceType type) -> c10::IValue {
    const auto key = type == torch::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    return at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(key), caffe2::TypeMeta::Make<float>(),
                                                    torch::Device(type, type == torch::kCUDA ? 0 : -1));
  };
  const auto waits = [&](torch::DeviceType into, torch::DeviceType from, bool non_blocking) {
    const std::vector<c10::IValue> inputs = {on(into), on(from), non_blocking};
    return profile::waits_for_device("aten::copy_", inputs, torch::kCUDA);
  };
  EXPECT_TRUE(waits(torch::kCPU, torch::kCUDA, false));
  EXPECT_TRUE(waits(torch::kCUDA, torch::kCPU, false));
  EXPECT_FALSE(waits(torch::kCPU, torch::kCUDA, true));
  EXPECT_FALSE(waits(torch::kCUDA, torch::kCUDA, false));
  EXPECT_FALSE(waits(torch::kCPU, torch::kCPU, false));
}

}  // namespace
}  // namespace lockstep
