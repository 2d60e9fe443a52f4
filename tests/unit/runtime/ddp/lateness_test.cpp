#include "runtime/ddp/lateness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/runtime/ddp/fake_communicator.h"

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
  std::vector<ReductionTimes> reductions{{.asked_ns = 1000, .ended_ns = 1500},
                                         {.asked_ns = 0, .ended_ns = 1900}};
  // This is rank 0; the times above are of its clock.
  const std::vector<DurationRange> durations{{.shortest_ns = 120, .late_rank = 1, .longest_ns = 500},
                                             {.shortest_ns = 100, .late_rank = 0, .longest_ns = 1000}};
  place_late_rank(reductions, durations, 50);
  EXPECT_EQ(reductions[0].late_rank, 1);
  EXPECT_EQ(reductions[0].all_asked_ns, 1380U) << "120 before the end";
  EXPECT_EQ(reductions[1].late_rank, 0);
}

TEST(LastRank, IsUnknownBelowTheLatency) {
  std::vector<ReductionTimes> reductions{{.asked_ns = 1000, .ended_ns = 1500}};
  const std::vector<DurationRange> durations{{.shortest_ns = 460, .late_rank = 1, .longest_ns = 500}};
  place_late_rank(reductions, durations, 50);
  EXPECT_EQ(reductions[0].late_rank, -1);
}

TEST(CommShare, CountsWaitingAfterBackwardOnly) {
  // Asked at 100 in a backward that ends at 300; the last rank asks at 450; done at 500.
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 100, .began_ns = 450, .all_asked_ns = 450, .ended_ns = 500, .late_rank = 2}};
  const CommShare share = share_of(reductions, 300, 0);
  EXPECT_EQ(share.wait_ns, 150U);
  EXPECT_EQ(share.transfer_ns, 50U);
  EXPECT_EQ(share.late_rank, 2);
}

TEST(CommShare, CountsOverlappingReductionsOnce) {
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 100, .began_ns = 400, .all_asked_ns = 400, .ended_ns = 450, .late_rank = 1},
      {.asked_ns = 110, .began_ns = 420, .all_asked_ns = 410, .ended_ns = 480, .late_rank = 3}};
  const CommShare share = share_of(reductions, 100, 0);
  EXPECT_EQ(share.wait_ns, 310U);
  EXPECT_EQ(share.transfer_ns, 80U);
  EXPECT_EQ(share.late_rank, 1) << "both waits last 300; the first one counts";
}

TEST(CommShare, DoesNotWaitForItself) {
  const std::vector<ReductionTimes> reductions{
      {.asked_ns = 400, .began_ns = 400, .all_asked_ns = 400, .ended_ns = 450, .late_rank = 1}};
  const CommShare share = share_of(reductions, 300, 1);
  EXPECT_EQ(share.wait_ns, 0U);
  EXPECT_EQ(share.late_rank, -1);
}

const comm::RankInfo kOneOfTwoNodes = {.size = 2, .nodes = 2, .node_name = "here"};
constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(Lateness, ComesWithTheNextStepBetweenNodes) {
  lockstep::testing::FakeCommunicator ranks(kOneOfTwoNodes);
  Lateness lateness(ranks);
  EXPECT_THAT(lateness.to_compare(), ElementsAre());
  EXPECT_FALSE(lateness.end_step({{.asked_ns = kSecond, .ended_ns = 2 * kSecond}}, kSecond, {}));
  EXPECT_THAT(lateness.to_compare(), ElementsAre(kSecond));
  const std::vector<DurationRange> compared{{.shortest_ns = 7, .late_rank = 1, .longest_ns = kSecond}};
  const auto known =
      lateness.end_step({{.asked_ns = 5 * kSecond, .ended_ns = 6 * kSecond}}, 5 * kSecond, compared);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->reductions[0].late_rank, 1);
  EXPECT_EQ(known->share.late_rank, 1);
  EXPECT_EQ(known->share.wait_ns, kSecond - 7);
  EXPECT_EQ(known->share.transfer_ns, 7U);
}

TEST(Lateness, IsKnownAtOnceIfTheCommunicatorKnowsTheLastRank) {
  lockstep::testing::FakeCommunicator ranks(kOneOfTwoNodes);
  Lateness lateness(ranks);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(lateness.to_compare(), ElementsAre());
    const auto known = lateness.end_step(
        {{.asked_ns = 10, .began_ns = 30, .all_asked_ns = 30, .ended_ns = 40, .late_rank = 1}}, 20, {});
    ASSERT_TRUE(known);
    EXPECT_EQ(known->share.wait_ns, 10U);
  }
}

TEST(Lateness, IsNotMeasuredForOneRank) {
  const auto alone = comm::make_single_communicator("here");
  Lateness lateness(*alone);
  EXPECT_FALSE(lateness.end_step({{.asked_ns = 1, .ended_ns = 2}}, 1, {}));
  EXPECT_THAT(lateness.to_compare(), ElementsAre());
}

}  // namespace
}  // namespace lockstep::ddp
