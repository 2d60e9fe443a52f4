#include "runtime/ddp/bucket_size.h"

#include <gtest/gtest.h>

#include "runtime/comm/single/communicator.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Parameters of 1 MiB each, whose gradients arrive every `every_ns`, in reverse order.
BackwardProfile evenly(std::size_t parameters, std::uint64_t every_ns) {
  BackwardProfile backward;
  for (std::size_t i = 0; i < parameters; ++i) {
    backward.parameters.push_back({.bytes = kMiB, .group = 0});
    backward.order.push_back(parameters - 1 - i);
    backward.ready_ns.push_back((parameters - i) * every_ns);
  }
  backward.length_ns = parameters * every_ns;
  return backward;
}

TEST(TransferCost, IsTheLineThroughTheMeasurements) {
  const std::vector<Transfer> transfers{{1000, 1500}, {2000, 2500}, {4000, 4500}};
  const auto cost = fit_cost(transfers);
  EXPECT_NEAR(cost.latency_ns, 500, 1e-6);
  EXPECT_NEAR(cost.ns_per_byte, 1, 1e-9);
}

TEST(TransferCost, IsNeverNegative) {
  const std::vector<Transfer> faster_when_larger{{1000, 500}, {2000, 400}};
  EXPECT_EQ(fit_cost(faster_when_larger).ns_per_byte, 0);
  const std::vector<Transfer> from_nothing{{1000, 10}, {2000, 2000}};
  EXPECT_EQ(fit_cost(from_nothing).latency_ns, 0);
  const std::vector<Transfer> one_size{{1000, 2000}, {1000, 4000}};
  EXPECT_NEAR(fit_cost(one_size).ns_per_byte, 3, 1e-9);
}

TEST(ExposedTime, IsTheTransferTimeAfterBackward) {
  // Four gradients, 10 ns apart, one bucket each, 5 ns of transfer each: the last one is exposed.
  BackwardProfile backward = evenly(4, 10);
  const TransferCost cost{.latency_ns = 5, .ns_per_byte = 0};
  EXPECT_NEAR(predict_exposed_ns(backward, cost, {kMiB, kMiB}), 5, 1e-9);
  // Transfers of 20 ns each wait for one another: they end at 10 + 4 × 20.
  EXPECT_NEAR(predict_exposed_ns(backward, {.latency_ns = 20, .ns_per_byte = 0}, {kMiB, kMiB}), 50, 1e-9);
  // One bucket with all gradients starts at the end.
  EXPECT_NEAR(predict_exposed_ns(backward, {.latency_ns = 20, .ns_per_byte = 0}, {4 * kMiB, 4 * kMiB}), 20,
              1e-9);
}

TEST(ExposedTime, WaitsForEarlierBucketsThatAreLate) {
  BackwardProfile backward = evenly(2, 10);
  backward.ready_ns = {10, 30};  // the first bucket is ready last
  backward.length_ns = 30;
  EXPECT_NEAR(predict_exposed_ns(backward, {.latency_ns = 4, .ns_per_byte = 0}, {kMiB, kMiB}), 8, 1e-9);
}

TEST(BucketSizes, AreSmallWithoutLatency) {
  const BucketSizes current{.first_bytes = kMiB, .cap_bytes = 25 * kMiB};
  const auto chosen =
      choose_bucket_sizes(evenly(64, 1'000'000), {.latency_ns = 0, .ns_per_byte = 0.5}, current);
  EXPECT_LE(chosen.cap_bytes, kMiB);
}

TEST(BucketSizes, AreLargeIfLatencyDominates) {
  const BucketSizes current{.first_bytes = kMiB, .cap_bytes = kMiB};
  const auto chosen =
      choose_bucket_sizes(evenly(64, 1'000), {.latency_ns = 5'000'000, .ns_per_byte = 0}, current);
  EXPECT_EQ(chosen.first_bytes, 64 * kMiB) << "all gradients in one bucket";
}

TEST(BucketSizes, StayIfNothingIsGained) {
  const BucketSizes current{.first_bytes = 2 * kMiB, .cap_bytes = 7 * kMiB};
  EXPECT_EQ(choose_bucket_sizes(evenly(8, 1'000), {}, current), current);
}

TEST(BucketSizes, AreNeverWorseThanTheCurrentOnes) {
  for (const double latency : {0.0, 1e4, 1e6}) {
    for (const double per_byte : {0.0, 0.1, 10.0}) {
      const BackwardProfile backward = evenly(20, 300'000);
      const TransferCost cost{.latency_ns = latency, .ns_per_byte = per_byte};
      const BucketSizes current{.first_bytes = kMiB, .cap_bytes = 5 * kMiB};
      EXPECT_LE(predict_exposed_ns(backward, cost, choose_bucket_sizes(backward, cost, current)),
                predict_exposed_ns(backward, cost, current));
    }
  }
}

TEST(BucketTuner, ChoosesAfterAFewSteps) {
  const auto alone = comm::make_single_communicator("here");
  BucketTuner tuner(*alone);
  const BucketSizes current{.first_bytes = kMiB, .cap_bytes = 25 * kMiB};
  int steps = 0;
  std::optional<BucketSizes> chosen;
  for (; !chosen; ++steps) {
    ASSERT_LT(steps, 20);
    const std::vector<Transfer> transfers{{25 * kMiB, 25'000'000}, {kMiB, 1'000'000}};
    tuner.samples().add(evenly(64, 1'000'000), transfers);
    chosen = tuner.choose_together(current);
  }
  EXPECT_GT(steps, 1);
  EXPECT_LT(chosen->cap_bytes, current.cap_bytes);
}

}  // namespace
}  // namespace lockstep::ddp
