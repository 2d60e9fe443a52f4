// The optimizer's state moves from one partition to another: each element to its new owner, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/train/optimizer_state.h"
#include "tests/integration/mpi_world.h"
#include "tests/unit/runtime/ddp/fake_communicator.h"

namespace lockstep::testing {
namespace {

using train::BucketLayout;
using train::Partition;
using train::StatePiece;

/// The world's communicator, with counts.
class Counting : public FakeCommunicator {
 public:
  Counting() : FakeCommunicator(world().communicator().place()) {}
  comm::WorkHandle all_reduce(comm::Buffer buffer, std::string_view label,
                              comm::ReduceOptions options) override {
    ++operations;
    reduced_bytes += buffer.bytes();
    return world().communicator().all_reduce(buffer, label, std::move(options));
  }
  comm::WorkHandle exchange(std::span<const comm::PeerMessage> sends,
                            std::span<const comm::PeerMessage> receives, std::string_view label) override {
    ++operations;
    for (const comm::PeerMessage& send : sends) sent_bytes += send.bytes;
    for (const comm::PeerMessage& receive : receives) received_bytes += receive.bytes;
    return world().communicator().exchange(sends, receives, label);
  }
  int operations = 0;
  std::size_t reduced_bytes = 0;
  std::size_t sent_bytes = 0;
  std::size_t received_bytes = 0;

 protected:
  comm::WorkHandle start(std::string_view label) override {
    ADD_FAILURE() << label << " is not needed";
    return FakeCommunicator::start(label);
  }
};

// Parameter 1 has no state, as if it was never used. Parameter 2 was used later.
const std::vector<std::int64_t> kElements = {100, 50, 333, 7};
const std::vector<std::string> kKeys = {"average", "largest", "step"};

std::vector<StatePiece> state_of(const Partition& partition) {
  std::vector<StatePiece> state;
  for (const train::Span& span : partition.spans_of(world().rank())) {
    if (span.parameter == 1) continue;
    StatePiece piece{span, {}};
    piece.state["step"] = static_cast<std::int64_t>(10 - span.parameter);
    piece.state["average"] =
        torch::arange(span.begin, span.end, torch::kDouble) + 1000.0 * static_cast<double>(span.parameter);
    if (span.parameter == 3) piece.state["largest"] = torch::arange(span.begin, span.end, torch::kFloat);
    state.push_back(piece);
  }
  return state;
}

Partition buckets(const std::vector<std::vector<std::size_t>>& order) {
  std::vector<BucketLayout> layout;
  for (const auto& bucket : order) {
    layout.emplace_back();
    for (const std::size_t parameter : bucket) {
      layout.back().members.push_back({parameter, layout.back().count, kElements[parameter]});
      layout.back().count += (kElements[parameter] + 15) / 16 * 16;
    }
  }
  return {std::move(layout), world().size()};
}

void expect_same(const std::vector<StatePiece>& left, const std::vector<StatePiece>& right) {
  std::map<std::size_t, const StatePiece*> of;
  for (const StatePiece& piece : right) of[piece.span.parameter] = &piece;
  for (const StatePiece& piece : left) {
    if (piece.span.parameter == 1) {
      EXPECT_TRUE(piece.state.empty());
      continue;
    }
    const StatePiece& other = *of.at(piece.span.parameter);
    EXPECT_EQ(piece.span, other.span);
    ASSERT_EQ(piece.state.size(), other.state.size());
    for (const auto& [key, value] : piece.state) {
      if (value.isTensor()) {
        EXPECT_TRUE(torch::equal(value.toTensor(), other.state.at(key).toTensor())) << key;
      } else {
        EXPECT_EQ(value.toInt(), other.state.at(key).toInt());
      }
    }
  }
}

TEST(Redistribute, GivesEachRankItsElementsOfTheNewPartition) {
  const Partition first = buckets({{3, 2}, {1, 0}});
  const Partition second = buckets({{0, 1, 2, 3}});
  const std::vector<Partition> all = {first, second, Partition::of_parameters(kElements, world().size()),
                                      first.on(1)};
  for (const Partition& from : all) {
    for (const Partition& to : all) {
      Counting counting;
      const auto moved = train::redistribute(counting, from, state_of(from), to, kKeys);
      EXPECT_EQ(moved.size(), to.spans_of(world().rank()).size());
      expect_same(moved, state_of(to));
      std::size_t mine = 0;
      for (const StatePiece& piece : state_of(from)) {
        for (const auto& [key, value] : piece.state) mine += value.isTensor() ? value.toTensor().nbytes() : 0;
      }
      EXPECT_LE(counting.sent_bytes, mine);
      EXPECT_EQ(counting.operations, 3);
    }
  }
}

TEST(Redistribute, ExchangesOneByteIfNoRankHasState) {
  const Partition from = buckets({{3, 2}, {1, 0}});
  const Partition to = buckets({{0, 1, 2, 3}});
  Counting counting;
  const auto moved = train::redistribute(counting, from, {}, to, kKeys);
  EXPECT_EQ(counting.operations, 1);
  EXPECT_EQ(counting.reduced_bytes, 1U);
  ASSERT_EQ(moved.size(), to.spans_of(world().rank()).size());
  for (const StatePiece& piece : moved) EXPECT_TRUE(piece.state.empty());
}

TEST(Redistribute, SendsNothingThatStays) {
  const Partition partition = buckets({{3, 2}, {1, 0}});
  Counting counting;
  train::redistribute(counting, partition, state_of(partition), partition, kKeys);
  EXPECT_EQ(counting.sent_bytes + counting.received_bytes, 0U);
}

}  // namespace
}  // namespace lockstep::testing
