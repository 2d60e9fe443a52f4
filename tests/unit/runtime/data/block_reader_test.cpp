#include "runtime/data/plan/block_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/data/plan/epoch_planner.h"
#include "tests/unit/runtime/data/length_lists.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBlock = EpochOrder::kShardSamples * EpochOrder::kBlockShards;

// Counts what is read.
class CountedLengths final : public LengthSource {
 public:
  explicit CountedLengths(std::vector<std::uint32_t> lengths) : lengths_(std::move(lengths)) {}
  std::size_t size() const override { return lengths_.size(); }
  void read(std::size_t first, std::span<std::uint32_t> lengths) const override {
    std::copy_n(lengths_.begin() + static_cast<std::ptrdiff_t>(first), lengths.size(), lengths.begin());
    read_ += lengths.size();
  }
  std::string fingerprint() const override { return "data"; }

  std::uint64_t read() const { return read_; }
  std::vector<std::uint32_t>& lengths() { return lengths_; }
  const std::vector<std::uint32_t>& lengths() const { return lengths_; }

 private:
  std::vector<std::uint32_t> lengths_;
  mutable std::atomic<std::uint64_t> read_ = 0;
};

// Enough for four blocks, the last one short.
std::vector<std::uint32_t> many_lengths() {
  return length_lists(3 * kBlock + 20'000, 3000, 1)[1].lengths;
}

// All that a planner says of an epoch, block by block; of an error its text.
std::vector<std::string> story(const LengthSource& source, const PlanOptions& options, int threads) {
  std::vector<std::string> told;
  EpochPlanner planner(source, options);
  planner.use_threads(threads);
  try {
    for (PlannedBlock block; planner.next_block(block);) {
      const OverLong& over = planner.over_long();
      told.push_back(nlohmann::json{block.plan.ids(),
                                    block.plan.ends(),
                                    planner.next_start(),
                                    {over.samples, over.tokens, over.first},
                                    planner.state_after(block, block.plan.micro_batches_per_rank() / 2)}
                         .dump());
    }
    told.emplace_back("over");
  } catch (const Error& error) {
    told.emplace_back(error.what());
  }
  return told;
}

TEST(ReadingAhead, ChangesNothingOfWhatIsPlannedWhateverBecomesOfOverLongSamples) {
  const CountedLengths source(many_lengths());
  for (const TooLong too_long : {TooLong::truncate, TooLong::skip, TooLong::split}) {
    const PlanOptions options{.ranks = 4, .cap = 600, .cost = {3000, 1}, .too_long = too_long};
    const std::vector<std::string> alone = story(source, options, 1);
    ASSERT_EQ(alone.size(), 5U);
    for (const int threads : {2, 5}) {
      const std::vector<std::string> together = story(source, options, threads);
      ASSERT_EQ(together.size(), alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(together[i] == alone[i])
            << name_of(too_long) << ", " << threads << " threads, block " << i;
      }
    }
  }
}

TEST(ReadingAhead, EverySampleAndPieceOfSeveralBlocksIsPlannedOnceAndOverLongOnesAreCounted) {
  const CountedLengths source(many_lengths());
  for (const TooLong too_long : {TooLong::truncate, TooLong::skip, TooLong::split}) {
    EpochPlanner planner(source, {.ranks = 4, .cap = 600, .cost = {3000, 1}, .too_long = too_long});
    planner.use_threads(2);
    std::vector<SampleId> planned;
    for (PlannedBlock block; planner.next_block(block);) {
      planned.insert(planned.end(), block.plan.ids().begin(), block.plan.ids().end());
    }
    std::vector<SampleId> expected;
    OverLong over;
    for (SampleId id = 0; id < source.size(); ++id) {
      const std::uint32_t length = source.lengths()[id];
      if (length <= 600 || too_long != TooLong::skip) expected.push_back(id);
      if (length <= 600) continue;
      ++over.samples;
      if (too_long != TooLong::split) over.tokens += too_long == TooLong::skip ? length : length - 600;
      for (SampleId piece = 1; too_long == TooLong::split && piece * 600 < length; ++piece) {
        expected.push_back(id | piece << kPieceShift);
      }
    }
    std::ranges::sort(planned);
    std::ranges::sort(expected);
    EXPECT_TRUE(planned == expected) << name_of(too_long);
    EXPECT_EQ(planner.over_long().samples, over.samples) << name_of(too_long);
    EXPECT_EQ(planner.over_long().tokens, over.tokens) << name_of(too_long);
    EXPECT_GT(source.lengths().at(planner.over_long().first), 600U);
  }
}

TEST(ReadingAhead, ASampleThatCannotBePlannedIsRefusedWithItsOwnBlock) {
  CountedLengths source(many_lengths());
  const PlanOptions options{.ranks = 4, .cap = 3000, .cost = {3000, 1}};
  const EpochOrder order(source.size(), options.order, options.seed, options.epoch);
  // Of the third block: a shard that is read first, and one that is read later.
  const std::size_t first = order.shards(2)[3] * EpochOrder::kShardSamples + 7;
  const std::size_t second = order.shards(2)[9] * EpochOrder::kShardSamples;
  source.lengths()[first] = 3001;
  source.lengths()[second] = 0;
  for (const int threads : {1, 2}) {
    const std::vector<std::string> told = story(source, options, threads);
    ASSERT_EQ(told.size(), 3U) << "two blocks are planned before";
    EXPECT_THAT(told.back(),
                HasSubstr(fmt::format("sample {} has 3001 tokens, over the cap of 3000", first)));
  }
  source.lengths()[first] = 3000;
  for (const int threads : {1, 2}) {
    EXPECT_THAT(story(source, options, threads).back(), HasSubstr(fmt::format("sample {} is empty", second)));
  }
}

TEST(ReadingAhead, GoesOnFromAnotherBlockThanWasRead) {
  const CountedLengths source(many_lengths());
  const PlanOptions options{.ranks = 4, .cap = 6000, .cost = {3000, 1}};
  EpochPlanner planner(source, options);
  planner.use_threads(2);
  std::vector<PlannedBlock> blocks(3);
  for (PlannedBlock& block : blocks) ASSERT_TRUE(planner.next_block(block));
  for (const std::size_t place : {1U, 0U, 2U}) {
    planner.go_to(blocks[place].start);
    PlannedBlock again;
    ASSERT_TRUE(planner.next_block(again));
    EXPECT_TRUE(std::ranges::equal(again.plan.ids(), blocks[place].plan.ids())) << "block " << place;
  }
}

TEST(ReadingAhead, TheNextBlockIsReadWhereAThreadWaitsAndOnlyWithTwo) {
  for (const int threads : {1, 2}) {
    const CountedLengths source(many_lengths());
    EpochPlanner planner(source, {.ranks = 4, .cap = 6000, .cost = {3000, 1}});
    planner.use_threads(threads);
    std::uint64_t planned = 0;
    bool ahead = false;
    for (PlannedBlock block; planner.next_block(block);) {
      planned += kBlock + block.start.carried.size();
      ahead = ahead || source.read() > planned;
    }
    EXPECT_EQ(ahead, threads == 2);
  }
}

TEST(ReadingAhead, EveryLengthIsReadOnce) {
  for (const int threads : {1, 2}) {
    const CountedLengths source(many_lengths());
    EpochPlanner planner(source, {.ranks = 4, .cap = 6000, .cost = {3000, 1}});
    planner.use_threads(threads);
    std::uint64_t carried = 0;
    for (PlannedBlock block; planner.next_block(block);) carried += block.start.carried.size();
    EXPECT_EQ(source.read(), source.size() + carried);
  }
}

TEST(BlockReader, ReadsAShardAtATimeAndThenNothingMore) {
  const CountedLengths source(std::vector<std::uint32_t>(3 * EpochOrder::kShardSamples - 5, 8));
  const EpochOrder order(source.size(), Order::shuffled, 1, 2);
  BlockReader reader(source, order, {.cap = 10});
  EXPECT_FALSE(reader.go_on());
  reader.begin(0);
  for (int shard = 0; shard < 3; ++shard) {
    const std::uint64_t before = source.read();
    EXPECT_TRUE(reader.go_on());
    EXPECT_LE(source.read() - before, EpochOrder::kShardSamples);
  }
  EXPECT_EQ(source.read(), source.size());
  EXPECT_TRUE(reader.go_on());
  EXPECT_FALSE(reader.go_on());
  const BlockSamples block = reader.take(0);
  ASSERT_EQ(block.items.size(), source.size());
  const std::vector<SampleId> expected = order.block(0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::uint32_t index = block.items[i].index;
    ASSERT_EQ(block.shard_begins[index / EpochOrder::kShardSamples] + index % EpochOrder::kShardSamples,
              expected[i]);
  }
  EXPECT_FALSE(reader.go_on());
}

TEST(BlockReader, AfterAnErrorTheBlockIsReadAnew) {
  CountedLengths source(std::vector<std::uint32_t>(100, 8));
  source.lengths()[50] = 11;
  const EpochOrder order(source.size(), Order::shuffled, 1, 2);
  BlockReader reader(source, order, {.cap = 10});
  reader.begin(0);
  while (reader.go_on()) {
  }
  EXPECT_THAT([&] { reader.take(0); },
              ThrowsMessage<Error>(AllOf(HasSubstr("sample 50 has 11 tokens"), HasSubstr("raise the cap"))));
  source.lengths()[50] = 10;
  EXPECT_EQ(reader.take(0).items.size(), 100U);
}

}  // namespace
}  // namespace lockstep::data
