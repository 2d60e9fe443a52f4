// The noise scale of gradients whose noise is known.
#include "runtime/train/gradient_noise_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 64;
constexpr double kSignal = 0.5;     // every element of the true gradient
constexpr double kDeviation = 2.0;  // of the noise of one sample's gradient, in each element
constexpr double kNoiseScale = kDeviation * kDeviation / (kSignal * kSignal);  // trace / squared norm = 16

// The gradient of the loss is the input.
struct VectorImpl : torch::nn::Module {
  VectorImpl() { weight = register_parameter("weight", torch::zeros({kWidth}, torch::kDouble)); }
  torch::Tensor forward(const torch::Tensor& rows_of_gradients) {
    return torch::matmul(rows_of_gradients, weight);
  }
  torch::Tensor weight;
};
TORCH_MODULE(Vector);

torch::Tensor gradients(std::int64_t count) {
  return kSignal + kDeviation * torch::randn({count, kWidth}, torch::kDouble);
}

double measured(bool by_count, const std::function<std::int64_t(int)>& samples_of_step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(world().rank()));
  Vector vector;
  DistributedDataParallel ddp(vector, world(), small_buckets());
  const auto noise = std::make_shared<GradientNoiseScale>(world(), 0.995);
  ddp.register_comm_hook(noise);
  for (int step = 0; step < 600; ++step) {
    const std::int64_t samples = samples_of_step(step);
    const auto parts = gradients(samples).chunk(2);  // two micro-batches
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto hold = ddp.no_sync_unless(i + 1 == parts.size());
      const auto losses = ddp(parts[i]);
      if (by_count) {
        ddp.backward(losses.sum(), parts[i].size(0));
      } else {
        ddp.backward(losses.sum() / static_cast<double>(std::max<std::int64_t>(samples, 1)));
      }
    }
    noise->end_step(samples);
    set_gradients_to_none(*vector);
  }
  return noise->value().value();
}

TEST(GradientNoiseScale, IsFoundByCount) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  EXPECT_NEAR(measured(true, [](int) { return 4; }), kNoiseScale, 0.15 * kNoiseScale);
}

// The number of tokens differs between ranks, and between steps so much that the expected number changes too.
TEST(GradientNoiseScale, IsFoundWithUnevenTokens) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const auto samples = [](int step) { return 2 + 2 * world().rank() + (step % 100 < 50 ? 0 : 12); };
  EXPECT_NEAR(measured(true, samples), kNoiseScale, 0.2 * kNoiseScale);
}

TEST(GradientNoiseScale, IsFoundOverRanks) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  EXPECT_NEAR(measured(false, [](int) { return 4; }), kNoiseScale, 0.15 * kNoiseScale);
}

// The last rank has no samples if that leaves two ranks that have.
TEST(GradientNoiseScale, IsFoundOverRanksWithUnevenSamples) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const bool none = world().size() > 2 && world().rank() + 1 == world().size();
  const auto samples = [none](int) { return none ? 0 : 2 + 6 * world().rank(); };
  EXPECT_NEAR(measured(false, samples), kNoiseScale, 0.2 * kNoiseScale);
}

TEST(GradientNoiseScale, AnInfiniteGradientDoesNotCount) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  torch::manual_seed(100 + static_cast<std::uint64_t>(world().rank()));
  Vector vector;
  DistributedDataParallel ddp(vector, world(), small_buckets());
  const auto noise = std::make_shared<GradientNoiseScale>(world());
  ddp.register_comm_hook(noise);
  const auto step = [&](double factor) {
    ddp.backward(ddp(gradients(64) * factor).sum(), 64);
    noise->end_step(64);
    set_gradients_to_none(*vector);
  };
  step(1);
  const auto before = noise->value();
  ASSERT_TRUE(before.has_value());
  step(world().rank() == 0 ? std::numeric_limits<double>::infinity() : 1.0);
  EXPECT_EQ(noise->value(), before);
  step(1);
  EXPECT_TRUE(noise->value().has_value());
}

TEST(GradientNoiseScale, JoinIsRefused) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  Vector vector;
  DistributedDataParallel ddp(vector, world(), small_buckets());
  ddp.register_comm_hook(std::make_shared<GradientNoiseScale>(world()));
  EXPECT_THAT(error_of([&] { ddp.join([] {}); }), HasSubstr("train without it"));
}

TEST(GradientNoiseScale, TheGradientsAreThoseWithoutIt) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  torch::manual_seed(1);
  Net net;
  Net plain = copy_of(net);
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedDataParallel oracle(plain, world(), small_buckets());
  const auto noise = std::make_shared<GradientNoiseScale>(world());
  ddp.register_comm_hook(noise);
  for (int step = 0; step < 3; ++step) {
    const auto batch = my_part(rows(2 * world().size(), 3));
    ddp.backward(ddp(batch).square().sum(), 2);
    oracle.backward(oracle(batch).square().sum(), 2);
    noise->end_step(2);
    EXPECT_LT(gradient_difference(*net, *plain), 1e-12);
    set_gradients_to_none(*net);
    set_gradients_to_none(*plain);
  }
}

TEST(GradientNoiseScale, OneRankIsRefused) {
  if (world().size() > 1) GTEST_SKIP() << "needs one rank";
  EXPECT_THAT(error_of([] { GradientNoiseScale noise(world()); }), HasSubstr("at least two"));
}

}  // namespace
}  // namespace lockstep::testing
