// What the record says of collectives outside of backward.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "common/clock.h"
#include "exporters/record/reader.h"
#include "runtime/train/distributed_optimizer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

class CollectiveTimes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().timer().file().empty() || world().size() == 1) GTEST_SKIP() << "nothing is recorded";
  }

  static record::CollectiveTotals totals(record::Collective collective) {
    const record::Snapshot now = record::Reader(world().timer().file()).read();
    return now.resources ? now.resources->collectives[static_cast<std::size_t>(collective)]
                         : record::CollectiveTotals{};
  }

  // The totals since `before`. A thread takes a sample each second.
  static record::CollectiveTotals added(record::Collective collective,
                                        const record::CollectiveTotals& before) {
    const std::uint64_t deadline = monotonic_ns() + 10'000'000'000;
    while (totals(collective).bytes == before.bytes && monotonic_ns() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const record::CollectiveTotals after = totals(collective);
    return {.bytes = after.bytes - before.bytes, .ns = after.ns - before.ns};
  }
};

// NCCL's tests count the bytes of all ranks' parts.
TEST_F(CollectiveTimes, OfTheAllGathersOfDistributedOptimizer) {
  torch::nn::Linear net(100, 300);
  DistributedDataParallel ddp(net, world());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.01));
  const auto before = totals(record::Collective::all_gather);
  ddp(torch::ones({2, 100})).sum().backward();
  optimizer.step();
  const auto gathered = added(record::Collective::all_gather, before);
  const std::size_t bytes = net->weight.nbytes() + net->bias.nbytes();
  EXPECT_GE(gathered.bytes, bytes);
  EXPECT_LT(gathered.bytes, 1.1 * static_cast<double>(bytes));  // buckets have gaps between parameters
  EXPECT_GT(gathered.ns, 0);
}

TEST_F(CollectiveTimes, OfTheBroadcastsOfBuffers) {
  torch::nn::Sequential net(torch::nn::Linear(10, 1000), torch::nn::BatchNorm1d(1000));
  DistributedDataParallel ddp(net, world());
  const auto before = totals(record::Collective::broadcast);
  ddp(torch::ones({2, 10})).sum().backward();
  ddp(torch::ones({2, 10})).sum().backward();
  const auto sent = added(record::Collective::broadcast, before);
  EXPECT_GE(sent.bytes, 2 * 1000 * sizeof(float));  // the running mean and variance
  EXPECT_GT(sent.ns, 0);
}

}  // namespace
}  // namespace lockstep::testing
