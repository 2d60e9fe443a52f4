#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/error.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/order/samples_of_block.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBlock = EpochOrder::kShardSamples * EpochOrder::kBlockShards;

// Counts the lengths read.
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

// Lengths for four blocks, the last one short.
std::vector<std::uint32_t> many_lengths() {
  return length_lists(3 * kBlock + 20'000, 3000, 1)[1].lengths;
}

TEST(BlockReader, ReadsABlocksSamplesInTheEpochsOrder) {
  const CountedLengths source(length_lists(kBlock + 3 * EpochOrder::kShardSamples - 5, 10, 1)[0].lengths);
  for (const Order kind : {Order::shuffled, Order::sequential}) {
    const EpochOrder order(source.size(), kind, 1, 2);
    for (const std::size_t block : {0U, 1U}) {
      const BlockSamples samples = read_block_for_plan(source, order, block, {.cap = 10});
      const std::vector<SampleId> expected = samples_of_block(order, block);
      ASSERT_EQ(samples.items.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(samples.id_of(samples.items[i].index), expected[i]);
        ASSERT_EQ(samples.items[i].length, source.lengths()[expected[i]]);
      }
    }
    EXPECT_EQ(source.read() % source.size(), 0U) << "each length is read once";
  }
}

TEST(BlockReader, CutsSkipsOrSplitsOverLongSamplesInPlace) {
  const CountedLengths source({5, 25, 10, 11});
  const EpochOrder order(4, Order::sequential, 0, 0);
  const auto read = [&](TooLong too_long) {
    const BlockSamples samples = read_block_for_plan(source, order, 0, {.cap = 10, .too_long = too_long});
    std::vector<std::pair<SampleId, std::uint32_t>> items;
    for (const Item& item : samples.items) items.emplace_back(samples.id_of(item.index), item.length);
    return items;
  };
  using testing::ElementsAre;
  using testing::Pair;
  constexpr SampleId piece = SampleId{1} << kPieceShift;
  EXPECT_THAT(read(TooLong::truncate), ElementsAre(Pair(0, 5), Pair(1, 10), Pair(2, 10), Pair(3, 10)));
  EXPECT_THAT(read(TooLong::skip), ElementsAre(Pair(0, 5), Pair(1, 0), Pair(2, 10), Pair(3, 0)));
  EXPECT_THAT(read(TooLong::split),
              ElementsAre(Pair(0, 5), Pair(1, 10), Pair(2, 10), Pair(3, 10), Pair(1 | piece, 10),
                          Pair(1 | 2 * piece, 5), Pair(3 | piece, 1)));
}

TEST(BlockReader, RefusesOverLongAndEmptySamplesByNumber) {
  CountedLengths source(std::vector<std::uint32_t>(100, 8));
  source.lengths()[50] = 11;
  const EpochOrder order(source.size(), Order::shuffled, 1, 2);
  const auto read = [&] { return read_block_for_plan(source, order, 0, {.cap = 10}); };
  EXPECT_THAT(read,
              ThrowsMessage<Error>(AllOf(HasSubstr("sample 50 has 11 tokens"), HasSubstr("raise the cap"))));
  source.lengths()[50] = 0;
  EXPECT_EQ(read().items.size(), 100U) << "an empty sample keeps its place in the order";
  source.lengths()[50] = 10;
  EXPECT_EQ(read().items.size(), 100U);
}

TEST(ReadingAhead, PlansEverySampleAndPieceOfSeveralBlocksOnce) {
  const CountedLengths source(many_lengths());
  for (const TooLong too_long : {TooLong::truncate, TooLong::skip, TooLong::split}) {
    EpochPlanner planner(source, {.ranks = 4, .cap = 600, .cost = {3000, 1}, .too_long = too_long});
    std::vector<SampleId> planned;
    for (PlannedBlock block; planner.next_block(block);) {
      planned.insert(planned.end(), block.plan.sample_ids().begin(), block.plan.sample_ids().end());
    }
    std::vector<SampleId> expected;
    for (SampleId id = 0; id < source.size(); ++id) {
      const std::uint32_t length = source.lengths()[id];
      if (length <= 600 || too_long != TooLong::skip) expected.push_back(id);
      for (SampleId piece = 1; too_long == TooLong::split && piece * 600 < length; ++piece) {
        expected.push_back(id | piece << kPieceShift);
      }
    }
    std::ranges::sort(planned);
    std::ranges::sort(expected);
    EXPECT_TRUE(planned == expected) << name_of(too_long);
  }
}

TEST(ReadingAhead, RefusesASampleWhenItsBlockIsPlanned) {
  CountedLengths source(many_lengths());
  const PlanOptions options{.ranks = 4, .cap = 3000, .cost = {3000, 1}};
  const EpochOrder order(source.size(), options.order, options.seed, options.epoch);
  const std::size_t bad = order.shards(2)[3] * EpochOrder::kShardSamples + 7;
  source.lengths()[bad] = 3001;
  EpochPlanner planner(source, options);
  PlannedBlock block;
  ASSERT_TRUE(planner.next_block(block));
  ASSERT_TRUE(planner.next_block(block)) << "the two blocks before it are planned";
  EXPECT_THAT(
      [&] { planner.next_block(block); },
      ThrowsMessage<Error>(HasSubstr(fmt::format("sample {} has 3001 tokens, over the cap of 3000", bad))));
}

TEST(ReadingAhead, ReadsEveryLengthOnceAndAtMostOneBlockAhead) {
  const CountedLengths source(many_lengths());
  EpochPlanner planner(source, {.ranks = 4, .cap = 6000, .cost = {3000, 1}});
  std::uint64_t blocks = 0;
  for (PlannedBlock block; planner.next_block(block);) {
    ++blocks;
    EXPECT_LE(source.read(), (blocks + 1) * kBlock);
    EXPECT_GE(source.read(), std::min<std::uint64_t>(blocks * kBlock - kBlock, source.size()));
  }
  EXPECT_EQ(source.read(), source.size());
}

}  // namespace
}  // namespace lockstep::data
