#include "runtime/data/plan/steps/rank_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace lockstep::data {
namespace {

// Distributes the loads and returns each rank's time.
std::vector<double> times_of(const std::vector<double>& costs, const PlanOptions& options) {
  RankBalancer balancer(options);
  balancer.assign(costs);
  balancer.exchange();
  std::vector<int> assignments(costs.size());
  std::vector<double> times;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const auto loads = balancer.loads(static_cast<std::size_t>(rank));
    EXPECT_TRUE(std::ranges::is_sorted(loads)) << "costliest first";
    double cost = 0;
    for (const std::uint32_t load : loads) {
      cost += costs[load];
      ++assignments[load];
    }
    times.push_back(cost / (options.speeds.empty() ? 1 : options.speeds[static_cast<std::size_t>(rank)]));
  }
  EXPECT_THAT(assignments, testing::Each(1));
  return times;
}

double slowest(const std::vector<double>& times) {
  return *std::ranges::max_element(times);
}

TEST(RankBalancer, DistributesManyLoadsEvenly) {
  std::mt19937 engine(1);
  std::lognormal_distribution<double> log_normal(0, 1);
  for (const int ranks : {1, 2, 7, 64, 512}) {
    std::vector<double> costs(static_cast<std::size_t>(ranks) * 30);
    for (double& cost : costs) cost = log_normal(engine);
    std::ranges::sort(costs, std::greater<>());
    const std::vector<double> times = times_of(costs, {.ranks = ranks});
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / ranks;
    EXPECT_LE(slowest(times), mean * 1.001) << ranks << " ranks";
  }
}

TEST(RankBalancer, ExchangesLoadsOfUnevenRanks) {
  // Costliest first gives 8 + 5 + 4 = 17 and 7 + 6 = 13.
  EXPECT_THAT(times_of({8, 7, 6, 5, 4}, {.ranks = 2}), testing::Each(15));
  EXPECT_THAT(times_of({3, 3, 2, 2, 2}, {.ranks = 2}), testing::Each(6));
}

TEST(RankBalancer, GivesRanksCostInProportionToTheirSpeeds) {
  std::mt19937 engine(2);
  std::vector<double> costs(400);
  for (double& cost : costs) cost = 1 + static_cast<double>(engine() % 1000);
  std::ranges::sort(costs, std::greater<>());
  const std::vector<double> times = times_of(costs, {.ranks = 4, .speeds = {1, 2, 0.5, 4}});
  EXPECT_LE(slowest(times) / *std::ranges::min_element(times), 1.01);
}

TEST(RankBalancer, TheSlowestRankIsLimitedByTheCostliestLoad) {
  EXPECT_EQ(slowest(times_of({100, 1, 1, 1}, {.ranks = 3})), 100);
  EXPECT_THAT(times_of({5, 5}, {.ranks = 4}), testing::UnorderedElementsAre(5, 5, 0, 0));
  EXPECT_THAT(times_of({}, {.ranks = 3}), testing::Each(0));
}

TEST(RankBalancer, FindsLoadsThatOutweighAShare) {
  const RankBalancer equal({.ranks = 4});
  EXPECT_FALSE(equal.outweighs_share(25, 100));
  EXPECT_TRUE(equal.outweighs_share(25.1, 100));
  const RankBalancer fast({.ranks = 2, .speeds = {3, 1}});
  EXPECT_FALSE(fast.outweighs_share(75, 100));
  EXPECT_TRUE(fast.outweighs_share(75.1, 100));
}

TEST(RankBalancer, ALoadIsFreeIfTheFastestRankStaysBelowTheSlowest) {
  RankBalancer balancer({.ranks = 2});
  const std::vector<double> costs = {10, 4};
  balancer.assign(costs);
  EXPECT_TRUE(balancer.uneven());
  EXPECT_FALSE(balancer.add_if_free(7));
  EXPECT_TRUE(balancer.add_if_free(5));
  EXPECT_TRUE(balancer.add_if_free(1));
  EXPECT_FALSE(balancer.uneven());
  EXPECT_FALSE(balancer.add_if_free(1));
}

TEST(RankTree, FindsTheCheapestRank) {
  std::mt19937 engine(3);
  for (const std::size_t ranks : {1U, 2U, 3U, 8U, 70U}) {
    std::vector<double> costs(ranks);
    for (double& cost : costs) cost = static_cast<double>(engine() % 1000);
    RankTree tree(ranks);
    tree.fill(costs);
    for (int change = 0; change < 200; ++change) {
      ASSERT_EQ(costs[tree.cheapest()], *std::ranges::min_element(costs)) << ranks << " ranks";
      const std::size_t rank = engine() % ranks;
      costs[rank] = static_cast<double>(engine() % 1000);
      tree.set(rank, costs[rank]);
    }
  }
}

}  // namespace
}  // namespace lockstep::data
