// The loader's copies to a device, on a GPU or a simulated one (tests/device) if there is one, else on the CPU.
// LOCKSTEP_TEST_DEVICE names the type of device that there must be.
#include "tests/integration/data/loader_fixture.h"
#include "tests/integration/device_for_tests.h"

namespace lockstep::data {
namespace {

torch::Device device() {
  return testing::device_for_tests(0).type();
}

bool same(const torch::Tensor& on_cpu, const torch::Tensor& on_device) {
  if (!on_cpu.defined()) return !on_device.defined();
  return on_device.device().type() == device().type() && torch::equal(on_cpu, on_device.cpu());
}

// The device is kept busy, so that a copy that the computing stream did not wait for would be seen.
TEST_F(LoaderTest, BatchesOnTheDeviceAreThoseOfTheCpu) {
  for (const bool padded : {false, true}) {
    PlanOptions plan = alone();
    plan.padded = padded;
    Loader host(*reader_, plan, 0, nullptr);
    Loader copied(*reader_, plan, 0, nullptr, {.batches_ahead = 2, .device = device()});
    EXPECT_EQ(copied.memory().page_locked, !device().is_cpu());
    const auto matrix = torch::randn({device().is_cuda() ? 4096 : 64, device().is_cuda() ? 4096 : 64},
                                     torch::TensorOptions(device()));
    std::vector<Batch> expected;
    std::vector<Batch> found;  // compared at the end, when their host buffers have been reused
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      host.set_epoch(epoch);
      copied.set_epoch(epoch);
      for (const Batch& batch : host) expected.push_back(batch);
      for (const Batch& batch : copied) {
        torch::mm(matrix, matrix);
        found.push_back(batch);
        for (torch::Tensor* tensor : {&found.back().tokens, &found.back().positions, &found.back().loss_mask,
                                      &found.back().attention_mask, &found.back().cu_seqlens}) {
          if (tensor->defined()) *tensor = tensor->clone();
        }
      }
    }
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(same(expected[i].tokens, found[i].tokens)) << i;
      EXPECT_TRUE(same(expected[i].positions, found[i].positions)) << i;
      EXPECT_TRUE(same(expected[i].loss_mask, found[i].loss_mask)) << i;
      EXPECT_TRUE(same(expected[i].attention_mask, found[i].attention_mask)) << i;
      EXPECT_TRUE(same(expected[i].cu_seqlens, found[i].cu_seqlens)) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::data
