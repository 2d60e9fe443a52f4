#include "runtime/ddp/step_message.h"

#include <gtest/gtest.h>

#include "runtime/comm/reduction.h"
#include "tests/unit/runtime/ddp/fake_communicator.h"

namespace lockstep::ddp {
namespace {

/// Rank 0 of two. The other rank sends what `other` holds.
class OfTwo : public lockstep::testing::FakeCommunicator {
 public:
  explicit OfTwo(int rank = 0) : FakeCommunicator({.rank = rank, .size = 2, .node_name = "here"}) {}
  comm::WorkHandle all_reduce(comm::Buffer buffer, std::string_view label,
                              comm::ReduceOptions options) override {
    auto* const mine = static_cast<std::int64_t*>(buffer.data);
    if (other.empty()) {
      other.assign(mine, mine + buffer.count);
    } else {
      EXPECT_EQ(other.size(), buffer.count);
      const void* const inputs[] = {mine, other.data()};
      comm::reduce(inputs, mine, buffer.count, buffer.type, comm::scaled_op_of(options, 2));
      options.then();
    }
    return start(label);
  }
  std::vector<std::int64_t> other;
};

// The data that rank 0 receives.
StepSummary exchange(const StepReport& first, const StepReport& second) {
  OfTwo other(1);
  StepMessage(other).send(second, [](const JobAverage& /*unused*/) {});
  OfTwo ranks(0);
  ranks.other = other.other;
  StepMessage message(ranks);
  JobAverage decided;
  message.send(first, [&](const JobAverage& all) { decided = all; });
  const StepSummary summary = message.receive();
  EXPECT_EQ(summary.average.count, decided.count);
  EXPECT_EQ(summary.average.over_ranks, decided.over_ranks);
  EXPECT_EQ(summary.average.by_count, decided.by_count);
  return summary;
}

TEST(StepMessage, SumsCountsAndComparesDurations) {
  const StepSummary summary =
      exchange({.average = {Averaging::by_count, 5}, .durations = {100, 40, 9}},
               {.average = {Averaging::by_count, 8}, .durations = {60, 40, 2'000'000'000}});
  EXPECT_EQ(summary.average.count, 13);
  ASSERT_EQ(summary.durations.size(), 3U);
  EXPECT_EQ(summary.durations[0].shortest_ns, 60U);
  EXPECT_EQ(summary.durations[0].late_rank, 1);
  EXPECT_EQ(summary.durations[0].longest_ns, 100U);
  EXPECT_EQ(summary.durations[1].late_rank, 0) << "of equal ones the first";
  EXPECT_EQ(summary.durations[2].shortest_ns, 9U);
  EXPECT_EQ(summary.durations[2].late_rank, 0);
  EXPECT_EQ(summary.durations[2].longest_ns, 2'000'000'000U);
}

TEST(StepMessage, NamesTheFirstRankOfEachWayOfAveraging) {
  const auto average_of = [](Averaging first, Averaging second) {
    return exchange({.average = {first, 0}}, {.average = {second, 0}}).average;
  };
  const JobAverage none = average_of(Averaging::undecided, Averaging::undecided);
  EXPECT_EQ(none.over_ranks, -1);
  EXPECT_EQ(none.by_count, -1);
  EXPECT_EQ(average_of(Averaging::over_ranks, Averaging::over_ranks).over_ranks, 0);
  const JobAverage mixed = average_of(Averaging::by_count, Averaging::over_ranks);
  EXPECT_EQ(mixed.over_ranks, 1);
  EXPECT_EQ(mixed.by_count, 0);
}

TEST(StepMessage, GivesAllRanksTheLargestStopSignal) {
  const std::uint64_t messages = StopRequest::messages;
  OfTwo other(1);
  StopRequest::mine = 15;
  StepMessage(other).send({}, [](const JobAverage& /*unused*/) {});
  StopRequest::mine = 0;
  OfTwo ranks(0);
  ranks.other = other.other;
  StepMessage message(ranks);
  message.send({}, [](const JobAverage& /*unused*/) {});
  static_cast<void>(message.receive());
  EXPECT_EQ(StopRequest::agreed, 15);
  EXPECT_EQ(StopRequest::messages, messages + 1);
  StopRequest::agreed = 0;
}

}  // namespace
}  // namespace lockstep::ddp
