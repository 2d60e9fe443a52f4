// The record's totals of collectives outside of backward.
#include <gtest/gtest.h>

#include "runtime/train/distributed_optimizer.h"
#include "tests/integration/ddp/models.h"
#include "tests/integration/train/collective_totals.h"

namespace lockstep::testing {
namespace {

TEST(CollectiveTimes, OfTheAllGathersOfDistributedOptimizerAndTheBroadcastsOfBuffersAreRecorded) {
  if (world().timer().file().empty() || world().size() == 1) GTEST_SKIP() << "nothing is recorded";
  const auto before = totals_now();
  torch::nn::Linear net(100, 300);
  DistributedDataParallel ddp(net, world());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.01));
  ddp(torch::ones({2, 100})).sum().backward();
  optimizer.step();
  torch::nn::Sequential with_buffers(torch::nn::Linear(10, 1000), torch::nn::BatchNorm1d(1000));
  DistributedDataParallel other(with_buffers, world());
  for (int step = 0; step < 2; ++step) other(torch::ones({2, 10})).sum().backward();
  const auto after = totals_now();
  const auto added = [&](record::Collective collective) {
    const auto i = static_cast<std::size_t>(collective);
    EXPECT_GT(after[i].ns, before[i].ns);
    return after[i].bytes - before[i].bytes;
  };
  // NCCL's tests count the bytes of all ranks' parts. Buckets have gaps between parameters.
  const std::size_t parameters = net->weight.nbytes() + net->bias.nbytes();
  EXPECT_GE(added(record::Collective::all_gather), parameters);
  EXPECT_LT(added(record::Collective::all_gather), parameters + parameters / 10);
  EXPECT_GE(added(record::Collective::broadcast), 2 * 1000 * sizeof(float));  // the running mean and variance
}

}  // namespace
}  // namespace lockstep::testing
