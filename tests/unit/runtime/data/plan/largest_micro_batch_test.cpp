// The largest micro-batch of plans whose micro-batches are known.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

MicroBatchShape largest(const std::vector<std::uint32_t>& lengths, const PlanOptions& options) {
  return largest_micro_batch(make_plan(lengths, options), lengths);
}

// A micro-batch holds one sample of 60 and nothing else, or up to three samples of 30.
const std::vector<std::uint32_t> kLengths = {30, 60, 30, 30, 30, 60, 30, 30};

TEST(LargestMicroBatch, IsTheOneWithTheMaximumCost) {
  const MicroBatchShape by_tokens =
      largest({30, 30, 30, 60}, {.cap = 90, .step_tokens = 90, .order = Order::sequential});
  EXPECT_EQ(by_tokens.samples, 3);
  EXPECT_EQ(by_tokens.longest, 30);
  EXPECT_EQ(by_tokens.tokens, 90);
  const MicroBatchShape by_squares = largest({30, 30, 30, 60}, {.cap = 90,
                                                                .step_tokens = 90,
                                                                .step_stretch = 1,
                                                                .cost = {.a = 1, .b = 1},
                                                                .order = Order::sequential});
  EXPECT_EQ(by_squares.samples, 1) << "60 squared is more than 3 times 30 squared";
  EXPECT_EQ(by_squares.longest, 60);
}

TEST(ShapeOfAMicroBatch, HasTheTokensAndSquaresOfItsCost) {
  const std::vector<std::uint32_t> lengths = {30, 5, 29};
  const std::vector<SampleId> samples = {0, 2};
  PlanOptions options{.cap = 96, .cost = {.a = 7, .b = 2}, .pad_multiple = 16};
  const MicroBatchShape packed = shape_of(samples, lengths, options);
  EXPECT_EQ(packed.tokens, 59);
  EXPECT_EQ(packed.squares, 30 * 30 + 29 * 29);
  EXPECT_EQ(cost_of(packed, options.cost), options.cost.of(30) + options.cost.of(29));
  options.padded = true;
  const MicroBatchShape padded = shape_of(samples, lengths, options);
  EXPECT_EQ(padded.tokens, 2 * 32);
  EXPECT_EQ(padded.squares, 2 * 32 * 32);
  EXPECT_EQ(cost_of(padded, options.cost), 2 * options.cost.of(32));
}

TEST(LargestMicroBatch, CountsThePadding) {
  const MicroBatchShape shape =
      largest({29, 30, 27}, {.cap = 96, .padded = true, .order = Order::sequential, .pad_multiple = 16});
  EXPECT_EQ(shape.samples, 3);
  EXPECT_EQ(shape.longest, 32);
  EXPECT_EQ(shape.tokens, 96);
}

// No micro-batch of any rank is above the cap, and one of these plans reaches it.
TEST(LargestMicroBatch, IsAtMostTheCap) {
  for (const int ranks : {1, 2, 3}) {
    const MicroBatchShape shape = largest(kLengths, {.ranks = ranks, .cap = 90});
    EXPECT_LE(shape.tokens, 90);
    EXPECT_GE(shape.tokens, 60);
  }
}

TEST(LargestMicroBatch, OfALongSampleIsThePieceThatIsUsed) {
  const MicroBatchShape shape = largest({500, 10}, {.cap = 100, .too_long = TooLong::truncate});
  EXPECT_EQ(shape.longest, 100);
  EXPECT_EQ(shape.tokens, 100);
}

}  // namespace
}  // namespace lockstep::data
