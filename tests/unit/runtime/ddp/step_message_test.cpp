#include "runtime/ddp/step_message.h"

#include <gtest/gtest.h>

#include "runtime/comm/reduction.h"
#include "runtime/comm/single/communicator.h"

namespace lockstep::ddp {
namespace {

/// Rank 0 of two. The other rank sends what `other` holds.
class OfTwo : public comm::Communicator {
 public:
  explicit OfTwo(int rank = 0) : Communicator({.rank = rank, .size = 2, .node_name = "here"}) {}
  std::string_view name() const override { return "two ranks"; }
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
  std::vector<std::int64_t> other;

 private:
  std::unique_ptr<comm::Communicator> alone_ = comm::make_single_communicator("here");
};

// The data that rank 0 receives.
StepSummary exchange(const StepReport& first, const StepReport& second, std::int64_t& tokens) {
  OfTwo other(1);
  StepMessage(other).send(second, [](std::int64_t /*unused*/) {});
  OfTwo ranks(0);
  ranks.other = other.other;
  StepMessage message(ranks);
  message.send(first, [&](std::int64_t sum) { tokens = sum; });
  return message.receive();
}

TEST(StepMessage, SumsTokensAndComparesDurations) {
  std::int64_t tokens = 0;
  const StepSummary summary =
      exchange({.tokens = 5, .fingerprint = 7, .durations = {100, 40, 9}},
               {.tokens = 8, .fingerprint = 7, .durations = {60, 40, 2'000'000'000}}, tokens);
  EXPECT_EQ(tokens, 13);
  EXPECT_EQ(summary.tokens, 13);
  EXPECT_FALSE(summary.fingerprints_differ);
  ASSERT_EQ(summary.durations.size(), 3U);
  EXPECT_EQ(summary.durations[0].shortest_ns, 60U);
  EXPECT_EQ(summary.durations[0].last_rank, 1);
  EXPECT_EQ(summary.durations[0].longest_ns, 100U);
  EXPECT_EQ(summary.durations[1].last_rank, 0) << "of equal ones the first";
  EXPECT_EQ(summary.durations[2].shortest_ns, 9U);
  EXPECT_EQ(summary.durations[2].last_rank, 0);
  EXPECT_EQ(summary.durations[2].longest_ns, 2'000'000'000U);
}

TEST(StepMessage, FindsFingerprintsThatDiffer) {
  std::int64_t tokens = 0;
  const std::uint64_t fingerprint = 0xfedc'ba98'7654'3210;
  EXPECT_FALSE(
      exchange({.fingerprint = fingerprint}, {.fingerprint = fingerprint}, tokens).fingerprints_differ);
  EXPECT_TRUE(
      exchange({.fingerprint = fingerprint}, {.fingerprint = fingerprint + 1}, tokens).fingerprints_differ);
  EXPECT_TRUE(exchange({.fingerprint = 0}, {.fingerprint = fingerprint}, tokens).fingerprints_differ);
}

TEST(StepMessage, GivesAllRanksTheLargestStopSignal) {
  std::int64_t tokens = 0;
  const std::uint64_t messages = StopRequest::messages;
  OfTwo other(1);
  StopRequest::mine = 15;
  StepMessage(other).send({}, [](std::int64_t /*unused*/) {});
  StopRequest::mine = 0;
  OfTwo ranks(0);
  ranks.other = other.other;
  StepMessage message(ranks);
  message.send({}, [&](std::int64_t sum) { tokens = sum; });
  static_cast<void>(message.receive());
  EXPECT_EQ(StopRequest::agreed, 15);
  EXPECT_EQ(StopRequest::messages, messages + 1);
  StopRequest::agreed = 0;
}

}  // namespace
}  // namespace lockstep::ddp
