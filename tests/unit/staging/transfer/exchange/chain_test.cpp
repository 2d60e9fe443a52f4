// What each node of a chain sends and reads: nobody sends the data more than once, and the source is read once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "staging/transfer/exchange/chain_schedule.h"
#include "staging/transfer/exchange/chunk_shares.h"
#include "tests/unit/staging/transfer/exchange/chain_world.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kShard = 100'000;

ChainOptions eight_nodes() {
  ChainOptions options;
  options.nodes = 8;
  options.files.assign(16, kShard);
  return options;
}

constexpr std::uint64_t kData = 16 * kShard;

TEST(Chain, ReadsTheSourceOnceAndNobodySendsMoreThanTheData) {
  const ChainEnd end = run_chain(eight_nodes());
  EXPECT_TRUE(end.complete);
  EXPECT_EQ(end.all_read(), kData);
  EXPECT_EQ(end.opens, 16U) << "each file by one node";
  EXPECT_EQ(end.connections, 2U) << "one to each neighbour";
  for (const std::uint64_t bytes : end.sent) EXPECT_LE(bytes, kData);
  EXPECT_THAT(end.notes, IsEmpty());
}

TEST(Chain, SeveralLanesCarryEachChunkOnce) {
  ChainOptions options = eight_nodes();
  options.lanes = 3;
  const ChainEnd end = run_chain(options);
  EXPECT_TRUE(end.complete);
  EXPECT_EQ(end.all_read(), kData);
  EXPECT_EQ(end.connections, 6U) << "three to each neighbour";
  for (const std::uint64_t bytes : end.sent) EXPECT_LE(bytes, kData);
  EXPECT_THAT(end.notes, IsEmpty());
}

TEST(Chain, NodesThatHaveTheDataSendItOnceAndNobodyReadsTheSource) {
  const std::vector<std::set<std::uint32_t>> cases{{0},          {3},    {7},
                                                   {0, 2, 4, 6}, {1, 2}, {0, 1, 2, 3, 4, 5, 6}};
  for (const std::set<std::uint32_t>& holders : cases) {
    SCOPED_TRACE(testing::PrintToString(holders));
    ChainOptions options = eight_nodes();
    options.holders = holders;
    const ChainEnd end = run_chain(options);
    EXPECT_TRUE(end.complete);
    EXPECT_EQ(end.all_read(), 0U);
    EXPECT_LE(end.max_sent(), kData);
    EXPECT_THAT(end.notes, IsEmpty());
  }
}

TEST(Chain, WhatALostNodeHadNotPassedOnIsReadOnce) {
  const std::map<double, std::size_t> cases{{0.1, 1}, {0.5, 2}, {0.9, 4}};
  for (const auto& [at, lanes] : cases) {
    SCOPED_TRACE(at);
    ChainOptions options = eight_nodes();
    options.lanes = lanes;
    options.lost = 3;
    options.lost_at = at;
    options.before_read = [](std::uint32_t) { std::this_thread::sleep_for(milliseconds(2)); };
    const ChainEnd end = run_chain(options);
    EXPECT_TRUE(end.complete);
    // At most the share of the lost node is read again.
    EXPECT_LE(end.all_read(), kData + kData / 8);
    EXPECT_LE(end.max_sent(), kData + kData / 8);
    EXPECT_THAT(end.notes, IsEmpty()) << "the node reports itself why it ended";
  }
}

TEST(Chain, IfOneOfSeveralHoldersIsLostTheOthersSufficeAndNobodyReadsTheSource) {
  ChainOptions options = eight_nodes();
  options.holders = {0, 4};
  options.lost = 4;
  options.lost_at = 0.3;
  const ChainEnd end = run_chain(options);
  EXPECT_TRUE(end.complete);
  EXPECT_EQ(end.all_read(), 0U);
  EXPECT_LE(end.max_sent(), kData);
}

TEST(Chain, IfTheLastHolderIsLostTheNodesDivideWhatItHadNotSent) {
  ChainOptions options = eight_nodes();
  options.files.assign(64, kShard);
  options.holders = {4};
  options.lost = 4;
  options.lost_at = 0.3;
  options.before_read = [](std::uint32_t) { std::this_thread::sleep_for(milliseconds(2)); };
  const ChainEnd end = run_chain(options);
  EXPECT_TRUE(end.complete);
  EXPECT_LE(end.all_read(), 64 * kShard * 8 / 10);
  EXPECT_LE(end.max_sent(), 64 * kShard * 11 / 10);
  for (const std::uint32_t node : {3U, 5U}) EXPECT_GT(end.read[node], 0U) << node;
}

TEST(Chain, ReaderWithASlowSourceIsHelped) {
  ChainOptions options = eight_nodes();
  options.nodes = 4;
  options.before_read = [](std::uint32_t node) {
    std::this_thread::sleep_for(milliseconds(node == 2 ? 40 : 1));
  };
  const ChainEnd end = run_chain(options);
  EXPECT_TRUE(end.complete);
  EXPECT_EQ(end.all_read(), kData);
  EXPECT_LT(end.read[2], kData / 8) << "half of its share is read by others";
}

// The predecessor reads what is handed over to it, and must not hear afterwards that this node does not want it.
TEST(ChainSchedule, ExpectsNothingWhileTheLastChunksAreReadAndStored) {
  // Node 1 reads chunk 0, its predecessor chunk 1.
  ChainSchedule schedule({.node = 1, .place = 1}, {1, 0}, [](std::size_t) { return true; });
  schedule.subscribe(0);
  EXPECT_EQ(schedule.take_own(), 0U);
  EXPECT_FALSE(schedule.all_begun());
  EXPECT_TRUE(schedule.begin_receiving(1));
  EXPECT_TRUE(schedule.all_begun());
  schedule.not_received(1);
  EXPECT_FALSE(schedule.all_begun());
  EXPECT_TRUE(schedule.begin_receiving(1));
  schedule.stored(0, 1);
  EXPECT_TRUE(schedule.all_begun());
  EXPECT_FALSE(schedule.finished());
  schedule.stored(1, 0);
  EXPECT_TRUE(schedule.finished());
}

TEST(ChainSchedule, DoesNotCancelWhatItHandsOver) {
  ChainSchedule schedule({.node = 1, .place = 1}, std::vector<std::uint32_t>(4, 2),
                         [](std::size_t) { return true; });
  schedule.subscribe(0);
  schedule.take_over(std::vector<std::size_t>{2, 3});  // from the successor
  EXPECT_THAT(schedule.hand_over(0, 0), ElementsAre(3));
  EXPECT_THAT(schedule.take_cancelled(0), ElementsAre(2));
}

std::map<std::uint32_t, std::size_t> loads_of(const std::vector<std::uint32_t>& dealt) {
  std::map<std::uint32_t, std::size_t> loads;
  for (const std::uint32_t reader : dealt) ++loads[reader];
  return loads;
}

TEST(ChunkShares, AreWholeFilesInTurn) {
  const ChunkPlan plan(std::vector<std::uint64_t>(12, 8 * 4096), 4096);
  const std::vector<std::uint32_t> dealt = deal_chunks(StreamPlan({&plan}), 3, {false});
  for (std::size_t chunk = 0; chunk < plan.size(); ++chunk) EXPECT_EQ(dealt[chunk], chunk / 8 % 3) << chunk;
}

TEST(ChunkShares, AreFairWhateverTheFiles) {
  const std::vector<std::vector<std::uint64_t>> cases{{8'000'000},                        // one file
                                                      {3'000'000, 3'000'000, 3'000'000},  // fewer than nodes
                                                      std::vector<std::uint64_t>(5, 2'000'000),  // a few more
                                                      {20'000'000, 100'000, 100'000, 4'000'000},  // unequal
                                                      std::vector<std::uint64_t>(3000, 1000)};  // small ones
  for (const auto& sizes : cases) {
    SCOPED_TRACE(sizes.size());
    const ChunkPlan plan(sizes, 4096);
    const std::vector<std::uint32_t> dealt = deal_chunks(StreamPlan({&plan}), 4, {false});
    std::set<std::pair<std::uint32_t, std::uint32_t>> opens;
    for (std::size_t chunk = 0; chunk < plan.size(); ++chunk) {
      for (const Extent& extent : plan.extents(chunk)) opens.emplace(dealt[chunk], extent.file);
    }
    for (const auto& [reader, load] : loads_of(dealt)) EXPECT_LE(load, plan.size() * 17 / 64 + 1) << reader;
    EXPECT_LE(opens.size(), sizes.size() + 4) << "few nodes open each file";
  }
}

}  // namespace
}  // namespace lockstep::transfer
