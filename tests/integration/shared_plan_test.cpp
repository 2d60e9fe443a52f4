#include "runtime/data/shared_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

comm::Communicator& communicator() {
  return lockstep::testing::world().communicator();
}

std::vector<std::uint32_t> some_lengths() {
  std::vector<std::uint32_t> lengths(300000);
  std::uint32_t word = 1;
  for (std::uint32_t& length : lengths) length = 20 + (word = word * 1664525 + 1013904223) % 500;
  return lengths;
}

// Lengths that only rank 0 may read.
class OnlyRankZero final : public LengthSource {
 public:
  explicit OnlyRankZero(std::span<const std::uint32_t> lengths) : lengths_(lengths) {}
  std::size_t size() const override { return lengths_.size(); }
  void read(std::size_t first, std::span<std::uint32_t> lengths) const override {
    if (communicator().rank() != 0) throw Error("read on another rank");
    std::copy_n(lengths_.begin() + static_cast<std::ptrdiff_t>(first), lengths.size(), lengths.begin());
  }
  std::string fingerprint() const override { return "data"; }

 private:
  std::span<const std::uint32_t> lengths_;
};

TEST(SharedPlan, EveryRankGetsWhatOnePlanned) {
  const std::vector<std::uint32_t> lengths = some_lengths();
  const OnlyRankZero source(lengths);
  const PlanOptions options{.ranks = communicator().size(), .cap = 8192, .accumulate = 2, .cost = {3000, 1}};
  const Plan expected = make_plan(lengths, options, "data");
  SharedPlan shared(source, options, communicator());
  std::vector<SampleId> ids;
  std::size_t steps = 0;
  std::optional<PlanState> state;
  for (PlannedBlock block; shared.next_block(block);) {
    ids.insert(ids.end(), block.plan.ids().begin(), block.plan.ids().end());
    steps += block.plan.steps();
    EXPECT_EQ(block.plan.samples(), lengths.size());
    EXPECT_EQ(block.plan.fingerprint(), "data");
    if (!state && communicator().rank() == 0) state = shared.state_after(block, 7);
  }
  EXPECT_EQ(steps, expected.steps());
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.ids().begin(), expected.ids().end()));

  SharedPlan again(source, options, communicator(), state);
  PlannedBlock block;
  ASSERT_TRUE(again.next_block(block));
  EXPECT_EQ(block.start.done, 7U);
}

TEST(SharedPlan, WhatGoesWrongOnRankZeroIsThrownEverywhere) {
  std::vector<std::uint32_t> lengths = some_lengths();
  lengths[4321] = 9000;
  const OnlyRankZero source(lengths);
  PlanOptions options{.ranks = communicator().size(), .cap = 8192};
  SharedPlan shared(source, options, communicator());
  PlannedBlock block;
  EXPECT_THAT(
      [&] {
        while (shared.next_block(block)) {
        }
      },
      ThrowsMessage<Error>(HasSubstr("sample 4321 has 9000 tokens")));
  options.ranks += 1;
  EXPECT_THAT([&] { SharedPlan(source, options, communicator()); },
              ThrowsMessage<UsageError>(HasSubstr("cannot be shared")));
}

}  // namespace
}  // namespace lockstep::data
