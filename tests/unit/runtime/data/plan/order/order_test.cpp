#include "runtime/data/plan/order/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/data/plan/order/random.h"
#include "tests/unit/runtime/data/plan/order/samples_of_block.h"

namespace lockstep::data {
namespace {

std::vector<std::vector<SampleId>> blocks_of(std::size_t samples, Order order, std::uint64_t epoch = 0) {
  const EpochOrder epoch_order(samples, order, 5, epoch);
  std::vector<std::vector<SampleId>> blocks;
  for (std::size_t block = 0; block < epoch_order.blocks(); ++block)
    blocks.push_back(samples_of_block(epoch_order, block));
  return blocks;
}

std::vector<SampleId> joined(const std::vector<std::vector<SampleId>>& blocks) {
  std::vector<SampleId> ids;
  for (const auto& block : blocks) ids.insert(ids.end(), block.begin(), block.end());
  return ids;
}

std::vector<SampleId> counting(std::size_t samples) {
  std::vector<SampleId> ids(samples);
  std::iota(ids.begin(), ids.end(), SampleId{0});
  return ids;
}

TEST(EpochOrder, HasEverySampleOnce) {
  for (const std::size_t samples : {0U, 1U, 4095U, 4096U, 4097U, 600001U}) {
    std::vector<SampleId> ids = joined(blocks_of(samples, Order::shuffled));
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, counting(samples));
  }
}

TEST(EpochOrder, SequentialIsTheOrderOfTheData) {
  EXPECT_EQ(joined(blocks_of(10000, Order::sequential)), counting(10000));
}

TEST(EpochOrder, IsReproducibleAndDiffersBetweenEpochs) {
  for (const std::size_t samples : {1000U, 10000U}) {  // within one shard, and over several
    const auto ids = joined(blocks_of(samples, Order::shuffled, 0));
    EXPECT_EQ(ids, joined(blocks_of(samples, Order::shuffled, 0)));
    EXPECT_NE(ids, joined(blocks_of(samples, Order::shuffled, 1)));
  }
}

TEST(EpochOrder, ABlockHasFewShardsAndMixesThemWell) {
  const auto blocks = blocks_of(EpochOrder::kShardSamples * EpochOrder::kBlockShards * 3, Order::shuffled);
  ASSERT_EQ(blocks.size(), 3U);
  for (const auto& block : blocks) {
    std::set<SampleId> shards;
    for (const SampleId id : block) shards.insert(id / EpochOrder::kShardSamples);
    EXPECT_EQ(shards.size(), EpochOrder::kBlockShards);
    std::set<SampleId> first;
    for (std::size_t i = 0; i < 64; ++i) first.insert(block[i] / EpochOrder::kShardSamples);
    EXPECT_GT(first.size(), 20U) << "the block's first 64 samples come from few shards";
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
