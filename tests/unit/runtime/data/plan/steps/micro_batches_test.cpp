// Tests of the cut into micro-batches: first fit under the cap, and padded ones of similar lengths.
#include "runtime/data/plan/steps/micro_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

namespace lockstep::data {
namespace {

std::vector<Item> random_items(std::mt19937& engine, std::size_t count, std::uint32_t longest) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back({static_cast<std::uint32_t>(i), 1 + static_cast<std::uint32_t>(engine() % longest)});
  }
  return items;
}

TEST(LengthSort, SortsLongestFirstAndKeepsTheOrderOfEqualLengths) {
  std::mt19937 engine(1);
  LengthSort sort;
  for (const std::size_t count : {0U, 1U, 2U, 23U, 24U, 25U, 5000U}) {
    for (const std::uint32_t longest : {1U, 2U, 511U, 512U, 513U, 300'000U, 4'294'967'295U}) {
      std::vector<Item> items = random_items(engine, count, longest);
      std::vector<Item> expected = items;
      std::ranges::stable_sort(expected, std::greater<>(), &Item::length);
      sort.longest_first(items);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(items[i].index, expected[i].index)
            << count << " items up to " << longest << ", place " << i;
      }
    }
  }
}

// The lengths in each micro-batch.
std::vector<std::vector<std::uint32_t>> cut(const std::vector<std::uint32_t>& lengths, std::uint64_t cap) {
  std::vector<Item> items;
  for (const std::uint32_t length : lengths)
    items.push_back({static_cast<std::uint32_t>(items.size()), length});
  std::vector<std::uint32_t> places(items.size());
  std::iota(places.begin(), places.end(), 0U);
  std::vector<std::uint32_t> indices = {77};  // of an earlier rank
  std::vector<std::uint32_t> ends = {1};
  MicroBatches(cap).cut(items, places, indices, ends);
  EXPECT_EQ(indices.size(), 1 + items.size());
  EXPECT_EQ(indices[0], 77U);
  std::vector<std::vector<std::uint32_t>> batches;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    batches.emplace_back();
    for (std::uint32_t at = ends[i - 1]; at < ends[i]; ++at) batches.back().push_back(lengths[indices[at]]);
  }
  EXPECT_EQ(ends.back(), indices.size());
  return batches;
}

using Batches = std::vector<std::vector<std::uint32_t>>;

TEST(MicroBatches, PutsEachSampleIntoTheFirstThatFitsAndTheFullestLast) {
  EXPECT_EQ(cut({}, 10), Batches{});
  EXPECT_EQ(cut({6, 4}, 10), (Batches{{6, 4}}));
  EXPECT_EQ(cut({6, 5, 4}, 10), (Batches{{5}, {6, 4}}));
  EXPECT_EQ(cut({10, 10}, 10), (Batches{{10}, {10}}));
  EXPECT_EQ(cut({7, 6, 4, 3, 2}, 10), (Batches{{2}, {6, 4}, {7, 3}}));
}

TEST(MicroBatches, AtMostOneIsHalfEmpty) {
  std::mt19937 engine(5);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t cap = 10 + static_cast<std::uint32_t>(engine() % 500);
    std::vector<std::uint32_t> lengths(1 + engine() % 200);
    for (std::uint32_t& length : lengths) length = 1 + static_cast<std::uint32_t>(engine() % cap);
    std::ranges::sort(lengths, std::greater<>());
    const Batches batches = cut(lengths, cap);
    std::size_t under_half = 0;
    for (const auto& batch : batches) {
      const auto tokens = std::accumulate(batch.begin(), batch.end(), std::uint64_t{0});
      ASSERT_GT(tokens, 0U);
      ASSERT_LE(tokens, cap);
      if (2 * tokens <= cap) ++under_half;
    }
    ASSERT_LE(under_half, 1U) << "two of them would fit into one";
  }
}

class CutForPadding : public testing::Test {
 protected:
  // Cuts the items and checks the rules of every cut.
  const std::vector<PaddedCut::ItemGroup>& cut_of(const std::vector<Item>& items,
                                                  const PlanOptions& options) {
    padded_.emplace(options);
    const std::vector<PaddedCut::ItemGroup>& groups = padded_->cut(items);
    std::vector<PaddedCut::ItemGroup> ordered = groups;
    std::ranges::sort(ordered, std::less<>(), &PaddedCut::ItemGroup::begin);
    double all = 0;
    std::uint32_t end = 0;
    for (const PaddedCut::ItemGroup& group : ordered) {
      EXPECT_EQ(group.begin, end);
      EXPECT_GT(group.end, group.begin);
      end = group.end;
      const std::uint64_t row = padded_length(items[group.begin].length, options.pad_multiple, options.cap);
      EXPECT_LE(row * (group.end - group.begin), options.cap);
      EXPECT_DOUBLE_EQ(group.cost, (group.end - group.begin) * options.cost.of(row));
      padding += row * (group.end - group.begin);
    }
    EXPECT_EQ(end, items.size());
    for (const Item& item : items)
      all += options.cost.of(padded_length(item.length, options.pad_multiple, options.cap));
    for (const PaddedCut::ItemGroup& group : groups) {
      if (group.end - group.begin > 1) {
        EXPECT_LE(group.cost, all / options.ranks * (1 + 1e-6)) << "more than a rank's share";
      }
    }
    for (const Item& item : items) padding -= item.length;
    return groups;
  }

  std::uint64_t padding = 0;  // of all cuts

 private:
  std::optional<PaddedCut> padded_;
};

TEST_F(CutForPadding, KeepsTheCapAndEachSampleOnce) {
  std::mt19937 engine(9);
  LengthSort sort;
  for (int round = 0; round < 300; ++round) {
    const auto longest = 1 + static_cast<std::uint32_t>(engine() % 2000);
    PlanOptions options{.ranks = 1 + static_cast<int>(engine() % 70),
                        .accumulate = 1 + static_cast<int>(engine() % 5)};
    options.cap = longest + engine() % 10'000;
    options.cost = {static_cast<double>(engine() % 3), static_cast<double>(1 + engine() % 3)};
    options.pad_multiple = 1U << (engine() % 6);
    std::vector<Item> items = random_items(engine, engine() % 300, longest);
    sort.longest_first(items);
    cut_of(items, options);
    if (HasFailure()) return;
  }
}

TEST_F(CutForPadding, DoesNotMixTwoDistantLengths) {
  std::vector<Item> items;
  for (std::uint32_t i = 0; i < 40; ++i) items.push_back({i, i < 20 ? 100U : 10U});
  cut_of(items, {.ranks = 2, .cap = 1000, .pad_multiple = 1});
  EXPECT_EQ(padding, 0U);
}

TEST_F(CutForPadding, MoreAccumulationLeavesLessPadding) {
  std::mt19937 engine(4);
  std::vector<Item> items = random_items(engine, 300, 1000);
  LengthSort().longest_first(items);
  std::uint64_t before = ~std::uint64_t{0};
  for (const int accumulate : {1, 2, 4}) {
    padding = 0;
    cut_of(items, {.ranks = 4, .cap = 20'000, .accumulate = accumulate, .pad_multiple = 1});
    EXPECT_LT(padding, before) << accumulate;
    before = padding;
  }
}

}  // namespace
}  // namespace lockstep::data
