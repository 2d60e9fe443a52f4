#include "runtime/ddp/exposed_time.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::ddp
