#include "runtime/ddp/lateness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/comm/single/communicator.h"

namespace lockstep::ddp {
namespace {

using ::testing::ElementsAre;

TEST(Durations, BeginAtTheEndOfThePreviousReduction) {
  const std::vector<ReductionTimes> reductions{{.asked_ns = 100, .ended_ns = 150},
                                               {.asked_ns = 110, .ended_ns = 170},
                                               {.asked_ns = 200, .ended_ns = 230}};
  EXPECT_THAT(durations_of(reductions), ElementsAre(50, 20, 30));
}

TEST(LastRank, IsTheOneWithTheShortestDuration) {
  std::vector<ReductionTimes> reductions{{.asked_ns = 1000, .ended_ns = 1500}};
  // The durations of ranks 0 to 2. This is rank 0; the times above are of its clock.
  const std::vector<std::uint64_t> durations{500, 120, 400};
  place_last_rank(reductions, durations, 3, 50);
  EXPECT_EQ(reductions[0].last_rank, 1);
  EXPECT_EQ(reductions[0].all_asked_ns, 1380U) << "120 before the end";
}

TEST(LastRank, IsUnknownBelowTheLatency) {
  std::vector<ReductionTimes> reductions{{.asked_ns = 1000, .ended_ns = 1500}};
  const std::vector<std::uint64_t> durations{500, 460};
  place_last_rank(reductions, durations, 2, 50);
  EXPECT_EQ(reductions[0].last_rank, -1);
}

TEST(LastRank, IsFoundForEachReduction) {
  std::vector<ReductionTimes> reductions{{.asked_ns = 0, .ended_ns = 900}, {.asked_ns = 0, .ended_ns = 1900}};
  const std::vector<std::uint64_t> durations{900, 100, 300, 1000};
  place_last_rank(reductions, durations, 2, 50);
  EXPECT_EQ(reductions[0].last_rank, 1);
  EXPECT_EQ(reductions[1].last_rank, 0);
}

TEST(CommShare, CountsWaitingAfterBackwardOnly) {
  // Asked at 100 in a backward that ends at 300; the last rank asks at 450; done at 500.
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 100, .began_ns = 450, .all_asked_ns = 450, .ended_ns = 500, .last_rank = 2}};
  const CommShare share = share_of(reductions, 300, 0);
  EXPECT_EQ(share.wait_ns, 150U);
  EXPECT_EQ(share.transfer_ns, 50U);
  EXPECT_EQ(share.waited_for, 2);
}

TEST(CommShare, CountsOverlappingReductionsOnce) {
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 100, .began_ns = 400, .all_asked_ns = 400, .ended_ns = 450, .last_rank = 1},
      {.asked_ns = 110, .began_ns = 420, .all_asked_ns = 410, .ended_ns = 480, .last_rank = 3}};
  const CommShare share = share_of(reductions, 100, 0);
  EXPECT_EQ(share.wait_ns, 310U);
  EXPECT_EQ(share.transfer_ns, 80U);
  EXPECT_EQ(share.waited_for, 1) << "both waits last 300; the first one counts";
}

TEST(CommShare, DoesNotWaitForItself) {
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 400, .began_ns = 400, .all_asked_ns = 400, .ended_ns = 450, .last_rank = 1}};
  const CommShare share = share_of(reductions, 300, 1);
  EXPECT_EQ(share.wait_ns, 0U);
  EXPECT_EQ(share.waited_for, -1);
}

/// One of two ranks on different nodes. The other one is in every reduction for 7 ns.
class TwoNodes : public comm::Communicator {
 public:
  explicit TwoNodes(int rank = 0)
      : Communicator({.rank = rank, .size = 2, .nodes = 2, .node_name = "here"}) {}
  std::string_view name() const override { return "two nodes"; }
  comm::WorkHandle all_reduce(comm::Buffer buffer, std::string_view label,
                              comm::ReduceOptions /*options*/) override {
    labels.emplace_back(label);
    if (label == "the buckets' times") {
      auto* durations = static_cast<std::int64_t*>(buffer.data);
      for (std::size_t i = 0; i < buffer.count / 2; ++i) {
        auto& others = durations[rank() == 0 ? buffer.count / 2 + i : i];
        EXPECT_EQ(others, 0) << "the operation is a sum";
        others = 7;
      }
    }
    return alone_->barrier(label);
  }
  comm::WorkHandle broadcast(comm::Buffer /*b*/, int /*root*/, std::string_view label) override {
    return alone_->barrier(label);
  }
  comm::WorkHandle all_gather(comm::Buffer /*mine*/, void* /*all*/, std::string_view label) override {
    return alone_->barrier(label);
  }
  comm::WorkHandle reduce_scatter(void* /*all*/, comm::Buffer /*mine*/, std::string_view label,
                                  comm::ReduceOptions /*options*/) override {
    return alone_->barrier(label);
  }
  comm::WorkHandle barrier(std::string_view label) override { return alone_->barrier(label); }
  std::unique_ptr<comm::Communicator> split(int /*color*/, std::string_view /*name*/) override {
    return nullptr;
  }
  std::vector<std::string> labels;

 private:
  std::unique_ptr<comm::Communicator> alone_ = comm::make_single_communicator("here");
};

constexpr std::uint64_t kSecond = 1'000'000'000;

class LatenessBetweenNodes : public ::testing::TestWithParam<int> {};

TEST_P(LatenessBetweenNodes, ComesWithTheNextStep) {
  TwoNodes ranks(GetParam());
  Lateness lateness(ranks);
  lateness.begin_step();
  EXPECT_FALSE(lateness.end_step({{.asked_ns = kSecond, .ended_ns = 2 * kSecond}}, kSecond));
  ranks.labels.clear();
  lateness.begin_step();
  EXPECT_THAT(ranks.labels, ElementsAre("the buckets' times"));
  const auto known = lateness.end_step({{.asked_ns = 5 * kSecond, .ended_ns = 6 * kSecond}}, 5 * kSecond);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->reductions[0].last_rank, 1 - GetParam());
  EXPECT_EQ(known->share.waited_for, 1 - GetParam());
  EXPECT_EQ(known->share.wait_ns, kSecond - 7);
  EXPECT_EQ(known->share.transfer_ns, 7U);
}

INSTANTIATE_TEST_SUITE_P(OfRank, LatenessBetweenNodes, ::testing::Values(0, 1));

TEST(Lateness, IsKnownAtOnceIfTheCommunicatorKnowsTheLastRank) {
  TwoNodes ranks;
  Lateness lateness(ranks);
  for (int step = 0; step < 2; ++step) {
    ranks.labels.clear();
    lateness.begin_step();
    EXPECT_THAT(ranks.labels, ElementsAre());
    const auto known = lateness.end_step(
        {{.asked_ns = 10, .began_ns = 30, .all_asked_ns = 30, .ended_ns = 40, .last_rank = 1}}, 20);
    ASSERT_TRUE(known);
    EXPECT_EQ(known->share.wait_ns, 10U);
  }
}

TEST(Lateness, IsNotMeasuredForOneRank) {
  const auto alone = comm::make_single_communicator("here");
  Lateness lateness(*alone);
  lateness.begin_step();
  EXPECT_FALSE(lateness.end_step({{.asked_ns = 1, .ended_ns = 2}}, 1));
}

}  // namespace
}  // namespace lockstep::ddp
