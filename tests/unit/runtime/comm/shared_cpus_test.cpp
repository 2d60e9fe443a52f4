#include "runtime/comm/shared_cpus.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

TEST(SharedCpus, AreNoneIfEachRankHasItsOwn) {
  const SharedCpus shared = find_shared_cpus({{0, 1}, {2, 3}, {0, 1}}, {0, 0, 1}, 0);
  EXPECT_EQ(shared.ranks, 1);
  EXPECT_EQ(shared.threads, 2);
  EXPECT_FALSE(shared.overlap);
}

TEST(SharedCpus, OfRanksWithTheSameSetAreDividedAndNotAnOverlap) {
  const SharedCpus shared = find_shared_cpus({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}, {0, 0, 0}, 1);
  EXPECT_EQ(shared.ranks, 3);
  EXPECT_EQ(shared.threads, 1);
  EXPECT_FALSE(shared.overlap);
}

TEST(SharedCpus, NameTheFirstPairWhoseSetsOverlapAndCountTheNodes) {
  const std::vector<std::vector<int>> cpus = {{0, 1}, {2, 3, 4}, {4, 5}, {0}, {0, 1}, {6, 7}, {6, 7}};
  const std::vector<int> nodes = {0, 0, 0, 1, 1, 2, 2};
  const SharedCpus shared = find_shared_cpus(cpus, nodes, 1);
  EXPECT_EQ(shared.ranks, 2);
  EXPECT_EQ(shared.threads, 2) << "two and a half";
  ASSERT_TRUE(shared.overlap);
  EXPECT_EQ(shared.overlap->rank, 1);
  EXPECT_EQ(shared.overlap->other, 2);
  EXPECT_EQ(shared.overlap->more_nodes, 1);
}

}  // namespace
}  // namespace lockstep::comm
