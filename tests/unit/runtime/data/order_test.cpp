#include "runtime/data/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/data/random.h"

namespace lockstep::data {
namespace {

std::vector<std::vector<SampleId>> groups_of(std::size_t samples, Order order, std::uint64_t epoch = 0) {
  EpochOrder epoch_order(samples, order, 5, epoch);
  std::vector<std::vector<SampleId>> groups;
  for (std::vector<SampleId> ids; epoch_order.next_group(ids);) groups.push_back(ids);
  return groups;
}

std::vector<SampleId> joined(const std::vector<std::vector<SampleId>>& groups) {
  std::vector<SampleId> ids;
  for (const auto& group : groups) ids.insert(ids.end(), group.begin(), group.end());
  return ids;
}

std::vector<SampleId> counting(std::size_t samples) {
  std::vector<SampleId> ids(samples);
  std::iota(ids.begin(), ids.end(), SampleId{0});
  return ids;
}

TEST(EpochOrder, HasEverySampleOnce) {
  for (const std::size_t samples : {0U, 1U, 4095U, 4096U, 4097U, 600001U}) {
    std::vector<SampleId> ids = joined(groups_of(samples, Order::shuffled));
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, counting(samples));
  }
}

TEST(EpochOrder, SequentialIsAsTheDataLie) {
  EXPECT_EQ(joined(groups_of(10000, Order::sequential)), counting(10000));
}

TEST(EpochOrder, IsTheSameAgainAndAnotherInTheNextEpoch) {
  for (const std::size_t samples : {1000U, 10000U}) {  // within one shard, and over several
    const auto ids = joined(groups_of(samples, Order::shuffled, 0));
    EXPECT_EQ(ids, joined(groups_of(samples, Order::shuffled, 0)));
    EXPECT_NE(ids, joined(groups_of(samples, Order::shuffled, 1)));
  }
}

TEST(EpochOrder, AGroupTouchesFewShardsAndMixesThemWell) {
  const auto groups = groups_of(EpochOrder::kShardSamples * EpochOrder::kGroupShards * 3, Order::shuffled);
  ASSERT_EQ(groups.size(), 3U);
  for (const auto& group : groups) {
    std::set<SampleId> shards;
    for (const SampleId id : group) shards.insert(id / EpochOrder::kShardSamples);
    EXPECT_EQ(shards.size(), EpochOrder::kGroupShards);
    std::set<SampleId> first;
    for (std::size_t i = 0; i < 64; ++i) first.insert(group[i] / EpochOrder::kShardSamples);
    EXPECT_GT(first.size(), 20U) << "the group's first 64 samples come from few shards";
  }
}

TEST(Random, IsTheSameOnEveryMachine) {
  Random random(1, 2, 3);
  std::vector<std::uint64_t> values(4);
  for (std::uint64_t& value : values) value = random.below(1000);
  EXPECT_THAT(values, testing::ElementsAre(453, 865, 689, 322));
}

}  // namespace
}  // namespace lockstep::data
