// Transfer and waiting times on a device, by marks that nobody waits for, and what is made of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "runtime/ddp/device_times.h"
#include "runtime/ddp/reducer.h"
#include "runtime/train/distributed_optimizer.h"
#include "tests/device/device_of_rank.h"
#include "tests/device/simulation.h"
#include "tests/integration/train/checkpoint_world.h"
#include "tests/integration/train/collective_totals.h"

namespace lockstep::testing {
namespace {

using ::testing::IsEmpty;

class DeviceTimesOfRanks : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(simulated::take_findings(), IsEmpty()); }
};

// The last rank begins each backward 20 ms later than the others, which wait for it on their devices, and not on the host.
TEST_F(DeviceTimesOfRanks, NameTheRankThatWasWaitedFor) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  Net net;
  net->to(device());
  DistributedDataParallel ddp(net, world(), small_buckets());
  const int late = world().size() - 1;
  bool named = false;
  // Another process may delay one of the other ranks for as long, but not in every step.
  for (int step = 0; step < 30 && !any_rank(named); ++step) {
    const auto loss = ddp(rows(2, 1).to(device())).sum();
    if (world().rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    simulated::drop_wait(simulated::Wait::host, 0);
    loss.backward();
    EXPECT_EQ(step < 3 ? 0 : simulated::waits(simulated::Wait::host), 0) << "step " << step;
    const auto& share = ddp.reducer().observer().share();
    named = world().rank() != late && share.late_rank == late && share.wait_ns > 5'000'000;
    if (named) {
      EXPECT_GT(share.transfer_ns, 0U);
      EXPECT_LT(share.transfer_ns, 20'000'000U);
    }
    if (share.late_rank >= 0) {
      EXPECT_NE(share.late_rank, world().rank());
    }
    net->zero_grad();
  }
  EXPECT_TRUE(any_rank(named));
}

TEST_F(DeviceTimesOfRanks, AreInTheRecord) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  profile::StepTimer& timer = world().timer();
  if (timer.file().empty()) GTEST_SKIP() << "there is no record here";
  Net net;
  net->to(device());
  DistributedDataParallel ddp(net, world(), small_buckets());
  timer.begin_step();
  const auto before = record::Reader(timer.file()).read().counters.comm_transfer_ns;
  for (int step = 0; step < 8; ++step) {
    ddp(rows(2, 1).to(device())).sum().backward();
    net->zero_grad();
    world().communicator().barrier("a step")->wait();
    net->parameters().front().sum().item<double>();  // the device has passed the marks
    timer.end_step({.tokens = 1, .samples = 1, .padding = 0});
  }
  EXPECT_GT(record::Reader(timer.file()).read().counters.comm_transfer_ns, before);
  // A thread of its own writes these, once a second.
  record::CollectiveTotals reduced;
  for (int i = 0; i < 100 && reduced.ns == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto used = record::Reader(timer.file()).read().resources;
    if (used) reduced = used->collectives[static_cast<std::size_t>(record::Collective::all_reduce)];
  }
  EXPECT_GT(reduced.ns, 0U);
  EXPECT_GT(reduced.bytes, 0U);
}

// A device whose marks are numbers, and which has passed those up to `passed`.
struct FakeClock : profile::DeviceClock {
  explicit FakeClock(std::shared_ptr<std::uint64_t> passing) : passed(std::move(passing)) {}
  Mark mark() noexcept override { return std::make_shared<std::uint64_t>(++*now); }
  bool reached(const Mark& mark) noexcept override {
    return *std::static_pointer_cast<std::uint64_t>(mark) <= *passed;
  }
  void wait(const Mark& /*mark*/) noexcept override { ADD_FAILURE() << "nobody may wait"; }
  std::uint64_t ns_between(const Mark& from, const Mark& to) noexcept override {
    return *std::static_pointer_cast<std::uint64_t>(to) - *std::static_pointer_cast<std::uint64_t>(from);
  }
  static inline auto now = std::make_shared<std::uint64_t>(0);
  std::shared_ptr<std::uint64_t> passed;
};

TEST(DeviceTimes, AreThoseOfMarksThatTheDeviceHasPassedBackwardsLater) {
  const auto passed = std::make_shared<std::uint64_t>(0);
  ddp::DeviceTimes times({.computing = std::make_unique<FakeClock>(passed),
                          .communicating = std::make_unique<FakeClock>(passed)});
  const auto backward = [&] {
    times.begin();  // the mark 0, after that:
    times.launching();
    times.launched();
    times.launching();
    times.launched();
    times.backward_ended();
    times.stage_ended(1);
    times.finish();
  };
  for (std::size_t i = 0; i < ddp::DeviceTimes::kAge; ++i) {
    backward();
    EXPECT_FALSE(times.take());
  }
  backward();
  *passed = *FakeClock::now;
  const auto first = times.take();
  ASSERT_TRUE(first && first->known);
  EXPECT_EQ(first->reductions[0].asked_ns, 1U);
  EXPECT_EQ(first->reductions[0].ended_ns, 2U);
  EXPECT_EQ(first->reductions[1].asked_ns, 3U);
  EXPECT_EQ(first->reductions[1].ended_ns, 6U) << "the end of the second stage";
  EXPECT_EQ(first->ended_ns, 5U);
  EXPECT_FALSE(times.take()) << "each once";
  *passed = 0;  // of the second, none
  backward();
  const auto second = times.take();
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->known);
  EXPECT_EQ(second->reductions.size(), 2U) << "so that all ranks send equally many durations";
}

// Two more steps, so that the device has passed the end of the first.
TEST_F(DeviceTimesOfRanks, OfAllGathersAndOfBroadcastsOfBuffersAreRecorded) {
  if (world().timer().file().empty() || world().size() == 1) GTEST_SKIP() << "nothing is recorded";
  const auto before = totals_now();
  torch::nn::Sequential net(torch::nn::Linear(10, 1000), torch::nn::BatchNorm1d(1000));
  net->to(device());
  DistributedDataParallel ddp(net, world());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    ddp(torch::ones({2, 10}, device())).sum().backward();
    optimizer.step();
    net->parameters().front().cpu();
  }
  const auto after = totals_now();
  for (const auto collective : {record::Collective::all_gather, record::Collective::broadcast}) {
    const auto i = static_cast<std::size_t>(collective);
    EXPECT_GT(after[i].ns, before[i].ns);
    EXPECT_GE(after[i].bytes - before[i].bytes, 2 * 1000 * sizeof(float));
  }
}

}  // namespace
}  // namespace lockstep::testing
