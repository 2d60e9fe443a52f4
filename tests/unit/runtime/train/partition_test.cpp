// The partition is as a table of all elements says, and for thousands of ranks within the bounds that
// docs/benchmarks.md promises.
#include "runtime/train/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace lockstep::train {
namespace {

using Elements = std::vector<std::int64_t>;  // by parameter

/// The parameters in this order, `in_each` in a bucket, each rounded up to 16 elements as in memory.
std::vector<BucketLayout> buckets_of(const Elements& elements, const std::vector<std::size_t>& order,
                                     std::size_t in_each) {
  std::vector<BucketLayout> buckets;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % in_each == 0) buckets.emplace_back();
    BucketLayout& bucket = buckets.back();
    bucket.members.push_back({order[i], bucket.count, elements[order[i]]});
    bucket.count += (elements[order[i]] + 15) / 16 * 16;
  }
  return buckets;
}

std::vector<std::size_t> order_of(std::size_t parameters, std::mt19937& random) {
  std::vector<std::size_t> order(parameters);
  for (std::size_t i = 0; i < parameters; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// The rank of each element, from the definition: element after element.
std::map<std::pair<std::size_t, std::int64_t>, int> table_of(const std::vector<BucketLayout>& buckets,
                                                             int ranks) {
  std::map<std::pair<std::size_t, std::int64_t>, int> table;
  for (const BucketLayout& bucket : buckets) {
    for (const auto& member : bucket.members) {
      for (std::int64_t i = 0; i < member.elements; ++i) {
        const std::int64_t at = member.position + i;
        const std::int64_t each = bucket.count / ranks + (bucket.count % ranks > 0 ? 1 : 0);
        int rank = 0;
        while (at >= each * (rank + 1)) ++rank;
        table[{member.parameter, i}] = rank;
      }
    }
  }
  return table;
}

std::int64_t elements_of(const PeerSpans& peer) {
  std::int64_t sum = 0;
  for (const Span& span : peer.spans) sum += span.size();
  return sum;
}

using Piece = std::tuple<int, int, std::size_t, std::int64_t>;  // from, to, parameter, element

TEST(Partition, IsThatOfATableOfAllElements) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Elements elements(1 + random() % 7);
    for (auto& one : elements) one = static_cast<std::int64_t>(random() % 40);  // also none
    const auto pick = [&](std::size_t most) { return 1 + static_cast<std::size_t>(random()) % most; };
    const auto before = buckets_of(elements, order_of(elements.size(), random), pick(3));
    const auto after = buckets_of(elements, order_of(elements.size(), random), pick(3));
    const int ranks_before = static_cast<int>(pick(6));
    const int ranks_after = static_cast<int>(pick(6));
    const Partition from(before, ranks_before);
    const Partition to(after, ranks_after);
    const auto from_table = table_of(before, ranks_before);
    const auto to_table = table_of(after, ranks_after);
    std::vector<Piece> expected;
    for (const auto& [element, rank] : from_table)
      expected.emplace_back(rank, to_table.at(element), element.first, element.second);
    std::sort(expected.begin(), expected.end());

    std::vector<Piece> sent;
    std::map<std::pair<int, int>, std::vector<Span>> messages;
    for (int rank = 0; rank < std::max(ranks_before, ranks_after); ++rank) {
      for (const PeerSpans& send : Moves(from, to, rank).sends) {
        messages[{rank, send.peer}] = send.spans;
        for (const Span& span : send.spans) {
          for (std::int64_t i = span.begin; i < span.end; ++i)
            sent.emplace_back(rank, send.peer, span.parameter, i);
        }
      }
    }
    std::sort(sent.begin(), sent.end());
    ASSERT_EQ(sent, expected) << "round " << round;
    for (int rank = 0; rank < std::max(ranks_before, ranks_after); ++rank) {
      for (const PeerSpans& receive : Moves(from, to, rank).receives) {
        const auto message = messages.extract({receive.peer, rank});
        ASSERT_FALSE(message.empty()) << "nobody sends what rank " << rank << " expects";
        EXPECT_EQ(message.mapped(), receive.spans) << "rank " << receive.peer << " to " << rank;
      }
    }
    EXPECT_TRUE(messages.empty()) << "nobody expects it";
  }
}

TEST(Partition, OnOtherRanksKeepsTheParts) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    Elements elements(1 + random() % 5);
    for (auto& one : elements) one = static_cast<std::int64_t>(random() % 60);
    const int saved = 1 + static_cast<int>(random() % 9);
    const int ranks = 1 + static_cast<int>(random() % 9);
    const Partition from(buckets_of(elements, order_of(elements.size(), random), 1 + random() % 3), saved);
    const Partition to = from.on(ranks);
    EXPECT_EQ(to.is_plain(), saved == ranks);
    std::int64_t kept = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Span& span : to.spans_of(rank)) {
        kept += span.size();
        std::vector<Partition::Owned> owners;
        to.append_owners(span, owners);
        ASSERT_EQ(owners.size(), 1U);
        ASSERT_EQ(owners[0].rank, rank) << saved << " to " << ranks;
      }
      for (const PeerSpans& peer : Moves(from, to, rank).receives) {
        EXPECT_GE((peer.peer + 1) * ranks, rank * saved) << "not of a part that is another rank's";
        EXPECT_LE(peer.peer * ranks, (rank + 1) * saved);
      }
    }
    std::int64_t all = 0;
    for (const auto one : elements) all += one;
    ASSERT_EQ(kept, all);
  }
}

TEST(Partition, OfParametersGivesEachRankAnEqualPartOfEach) {
  const Partition partition = Partition::of_parameters({100, 7, 0}, 3);
  EXPECT_EQ(partition.spans_of(0), (std::vector<Span>{{0, 0, 34}, {1, 0, 3}}));
  EXPECT_EQ(partition.spans_of(2), (std::vector<Span>{{0, 68, 100}, {1, 6, 7}}));
  EXPECT_TRUE(partition.spans_of(3).empty());
}

TEST(Partition, StaysValidWhenItIsCopied) {
  auto first = std::make_unique<Partition>(Partition::of_parameters({10}, 2));
  const Partition copy = *first;
  first.reset();
  EXPECT_EQ(elements_of(Moves(copy, copy.on(1), 1).sends.front()), 5);
}

// A model of 7 billion parameters, 1,120 buckets, AdamW's two moments in f32.
struct LargeModel {
  LargeModel() {
    std::mt19937 random(7);
    for (int layer = 0; layer < 160; ++layer) {
      for (const std::int64_t size : {4096L * 4096, 4096L * 1024, 4096L * 1024, 4096L * 4096, 11'008L * 256,
                                      4096L, 4096L, 4096L, 4096L, 1024L, 1024L, 1024L, 11'008L, 4096L})
        elements.push_back(size);
    }
    std::vector<std::size_t> order(elements.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    first = buckets_of(elements, order, 2);
    rebuilt = buckets_of(elements, order_of(elements.size(), random), 2);  // no bucket stays as it was
    for (const auto one : elements) all += one;
  }
  static constexpr std::int64_t kStateBytes = 8;  // of an element
  Elements elements;
  std::vector<BucketLayout> first;
  std::vector<BucketLayout> rebuilt;
  std::int64_t all = 0;
};

struct Counted {
  std::int64_t most_bytes = 0;  // sent and received by one rank
  std::size_t most_messages = 0;
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

Counted count(const Partition& from, const Partition& to, int ranks) {
  Counted counted;
  for (int rank = 0; rank < ranks; ++rank) {
    const Moves moves(from, to, rank);
    std::int64_t bytes = 0;
    std::size_t messages = 0;
    const auto add = [&](const std::vector<PeerSpans>& peers, std::int64_t& sum) {
      for (const PeerSpans& peer : peers) {
        sum += elements_of(peer);
        if (peer.peer == rank) continue;
        bytes += elements_of(peer) * LargeModel::kStateBytes;
        ++messages;
      }
    };
    add(moves.sends, counted.sent);
    add(moves.receives, counted.received);
    counted.most_bytes = std::max(counted.most_bytes, bytes);
    counted.most_messages = std::max(counted.most_messages, messages);
  }
  return counted;
}

TEST(LargePartition, ARankExchangesTwiceItsOwnShardAtMost) {
  const LargeModel model;
  ASSERT_EQ(model.first.size(), 1120U);
  for (const int ranks : {1024, 8192}) {
    const Partition first(model.first, ranks);
    const Partition rebuilt(model.rebuilt, ranks);
    const std::int64_t shard = model.all / ranks * LargeModel::kStateBytes;
    const Counted counted = count(first, rebuilt, ranks);
    EXPECT_EQ(counted.sent, model.all);
    EXPECT_EQ(counted.received, model.all);
    EXPECT_LE(counted.most_bytes, 2 * shard + 10'000'000) << ranks;
    EXPECT_LE(counted.most_messages, 2 * static_cast<std::size_t>(ranks - 1));
    // Besides the pieces, ranks agree on two numbers for each parameter and each of Adam's four entries.
    EXPECT_LE(model.elements.size() * 4 * 2 * sizeof(std::int64_t), 1'000'000U);
    std::printf("%d ranks: shard %.1f MB, exchanged at most %.1f MB in %zu messages by one rank\n", ranks,
                static_cast<double>(shard) / 1e6, static_cast<double>(counted.most_bytes) / 1e6,
                counted.most_messages);
  }
}

TEST(LargePartition, SavedOnOtherRanksARankNeedsItsShardOfFewFiles) {
  const LargeModel model;
  for (const auto& [saved, loads] : {std::pair{1024, 8192}, {8192, 1024}, {8192, 8192}}) {
    const Partition from(model.first, saved);
    const Partition to = from.on(loads);
    for (int rank = 0; rank < loads; rank += 97) {
      const Moves moves(from, to, rank);
      std::int64_t elements = 0;
      for (const PeerSpans& peer : moves.receives) elements += elements_of(peer);
      EXPECT_LE(elements * LargeModel::kStateBytes,
                2 * model.all / loads * LargeModel::kStateBytes + 10'000'000);
      EXPECT_LE(moves.receives.size(), static_cast<std::size_t>(std::max(1, saved / loads) + 2)) << saved;
    }
  }
}

}  // namespace
}  // namespace lockstep::train
