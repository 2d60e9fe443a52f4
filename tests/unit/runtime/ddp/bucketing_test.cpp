#include "runtime/ddp/bucketing.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::ddp {
namespace {

enum : std::uint32_t { kFloat, kDouble };

ParameterSize floats(std::size_t elements) {
  return {.bytes = elements * 4, .group = kFloat};
}
ParameterSize doubles(std::size_t elements) {
  return {.bytes = elements * 8, .group = kDouble};
}

Assignment in_order(const std::vector<ParameterSize>& parameters, const std::vector<std::size_t>& limits) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return assign_buckets(parameters, order, limits);
}

// The expected assignments are those of PyTorch.
TEST(AssignBuckets, ClosesABucketThatHasReachedTheLimit) {
  EXPECT_EQ(in_order({floats(100), floats(200), floats(100), floats(50)}, {400}),
            (Assignment{{0}, {1}, {2}, {3}}));
}

TEST(AssignBuckets, SeparatesElementTypes) {
  const std::vector<ParameterSize> alternating{floats(50),  doubles(25), floats(50),
                                               doubles(25), floats(50),  doubles(25)};
  EXPECT_EQ(in_order(alternating, {400}), (Assignment{{0, 2}, {1, 3}, {4}, {5}}));
}

TEST(AssignBuckets, UsesTheLimitsOneAfterTheOther) {
  EXPECT_EQ(in_order({floats(10), floats(10), floats(10), floats(10)}, {40, 80}),
            (Assignment{{0}, {1, 2}, {3}}));
}

TEST(AssignBuckets, UsesTheLimitsPerElementType) {
  const std::vector<ParameterSize> alternating{floats(50),  doubles(25), floats(50),
                                               doubles(25), floats(50),  doubles(25)};
  EXPECT_EQ(in_order(alternating, {200, 400}), (Assignment{{0}, {1}, {2, 4}, {3, 5}}));
}

TEST(AssignBuckets, FollowsTheGivenOrder) {
  const std::vector<ParameterSize> parameters{floats(10), floats(10), floats(10)};
  const std::vector<std::size_t> order{2, 0, 1};
  const std::vector<std::size_t> limits{40, 80};
  EXPECT_EQ(assign_buckets(parameters, order, limits), (Assignment{{2}, {0, 1}}));
}

TEST(AssignBuckets, HasNoBucketForNoParameter) {
  EXPECT_TRUE(in_order({}, {400}).empty());
}

}  // namespace
}  // namespace lockstep::ddp
