// A signal that one rank receives stops all ranks after the same step.
#include "runtime/train/checkpoint/stop_signal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "runtime/comm/control/activity.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

// The number of the first poll that says stop, if the last rank receives a signal before poll `at`.
int stopped_at(StopSignal& stop, int at, int signal) {
  for (int poll = 0; poll < 20; ++poll) {
    if (poll == at && world().rank() + 1 == world().size()) ::raise(signal);
    if (stop.poll()) return poll;
  }
  return -1;
}

TEST(StopSignal, OfOneRankStopsAllAfterTheSameStep) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    StopSignal stop(world());
    EXPECT_EQ(stopped_at(stop, 3, signal), 4);
    EXPECT_EQ(stop.signal(), signal);
    EXPECT_TRUE(stop.poll());
  }
}

TEST(StopSignal, TravelsWithASynchronisedBackward) {
  const torch::nn::Linear model(2, 1);
  DistributedDataParallel ddp(model, world());
  StopSignal stop(world());
  const auto step = [&] { ddp.backward(ddp(torch::ones({1, 2})).sum()); };
  for (int i = 0; i < 3; ++i) {
    step();
    const std::uint64_t before = comm::current_activity().asked;
    EXPECT_FALSE(stop.poll());
    EXPECT_EQ(comm::current_activity().asked, before) << "no operation of its own";
  }
  if (world().rank() + 1 == world().size()) ::raise(SIGTERM);
  step();
  EXPECT_TRUE(stop.poll());
  EXPECT_EQ(stop.signal(), SIGTERM);
}

TEST(StopSignal, WithoutASignalNothingStops) {
  StopSignal stop(world());
  EXPECT_EQ(stopped_at(stop, 100, SIGTERM), -1);
  EXPECT_EQ(stop.signal(), 0);
}

TEST(StopSignal, OneThatCameBeforeThisStartStopsItAtOnce) {
  ::setenv("LOCKSTEP_SIGNAL", std::to_string(SIGUSR1).c_str(), 1);
  {
    StopSignal stop(world());
    EXPECT_EQ(stopped_at(stop, 100, SIGTERM), 1);
    EXPECT_EQ(stop.signal(), SIGUSR1);
  }
  {
    StopSignal other(world(), {SIGTERM});
    EXPECT_EQ(stopped_at(other, 100, SIGTERM), -1);
  }
  ::unsetenv("LOCKSTEP_SIGNAL");
}

TEST(StopSignal, OnlyTheChosenSignalsAreTakenAndTheHandlersAreRestored) {
  struct sigaction before {};
  ::sigaction(SIGUSR2, nullptr, &before);
  {
    StopSignal stop(world(), {SIGUSR2});
    EXPECT_EQ(stopped_at(stop, 0, SIGUSR2), 1);
    EXPECT_THAT(error_of([] { StopSignal second(world()); }), ::testing::HasSubstr("there is another one"));
  }
  struct sigaction after {};
  ::sigaction(SIGUSR2, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace lockstep::testing
