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
