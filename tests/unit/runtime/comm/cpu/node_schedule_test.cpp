#include "runtime/comm/cpu/node_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

namespace lockstep::comm::cpu {
namespace {

// An order of summation as a number: every order of the same operands gives another one.
using Term = std::uint64_t;
Term plus(Term left, Term right) {
  return (left * 0x9E3779B97F4A7C15U) ^ (right + 0x7F4A7C15U + (left << 6U));
}

// Plays the schedules of all nodes. Every message must find its counterpart in the same round.
class Network {
 public:
  Network(int nodes, std::size_t count, ScheduleForm form) : grid_(grid_of(nodes)) {
    for (int node = 0; node < nodes; ++node) {
      schedules_.push_back(schedule_of(grid_, node, count, form, DataType::u8));
      terms_.emplace_back(count, static_cast<Term>(node + 1));
    }
    play();
  }

  const std::vector<std::vector<Term>>& terms() const { return terms_; }

 private:
  // The messages from one node to another, in their order: a node's rounds need not be those of another one.
  void play() {
    struct Sent {
      std::vector<Term> terms;
      std::size_t begin;
    };
    std::map<std::pair<int, int>, std::vector<Sent>> wire;
    std::vector<std::size_t> next(schedules_.size());
    std::vector<bool> posted(schedules_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t node = 0; node < schedules_.size(); ++node) {
        if (next[node] == schedules_[node].size()) continue;
        const Round& round = schedules_[node][next[node]];
        const int self = static_cast<int>(node);
        auto& mine = terms_[node];
        if (!posted[node]) {
          posted[node] = true;
          for (const auto& message : round.sends) {
            const auto begin = mine.begin() + static_cast<std::ptrdiff_t>(message.begin);
            wire[{self, message.peer}].push_back(
                {{begin, begin + static_cast<std::ptrdiff_t>(message.count)}, message.begin});
          }
        }
        const auto arrived = [&](const auto& message) { return !wire[{message.peer, self}].empty(); };
        if (!std::all_of(round.receives.begin(), round.receives.end(), arrived)) continue;
        moved = true;
        posted[node] = false;
        ++next[node];
        std::vector<std::vector<Term>> operands;
        for (const auto& message : round.receives) {
          auto& queue = wire[{message.peer, self}];
          ASSERT_EQ(queue.front().begin, message.begin);
          ASSERT_EQ(queue.front().terms.size(), message.count);
          if (round.reduces) {
            operands.push_back(queue.front().terms);
          } else {
            std::copy(queue.front().terms.begin(), queue.front().terms.end(),
                      mine.begin() + static_cast<std::ptrdiff_t>(message.begin));
          }
          queue.erase(queue.begin());
        }
        if (!round.reduces) continue;
        const auto own = mine.begin() + static_cast<std::ptrdiff_t>(round.begin);
        operands.insert(operands.begin() + static_cast<std::ptrdiff_t>(round.before),
                        {own, own + static_cast<std::ptrdiff_t>(round.count)});
        for (std::size_t i = 0; i < round.count; ++i) {
          Term sum = operands[0][i];
          for (std::size_t operand = 1; operand < operands.size(); ++operand)
            sum = plus(sum, operands[operand][i]);
          own[static_cast<std::ptrdiff_t>(i)] = sum;
        }
      }
    }
    for (std::size_t node = 0; node < schedules_.size(); ++node) {
      ASSERT_EQ(next[node], schedules_[node].size()) << "node " << node << " waits for ever";
    }
    for (const auto& [pair, left] : wire) ASSERT_TRUE(left.empty()) << pair.first << " to " << pair.second;
  }

  NodeGrid grid_;
  std::vector<std::vector<Round>> schedules_;
  std::vector<std::vector<Term>> terms_;
};

// The order of summation that the header promises, computed from the digits alone.
Term expected_term(const NodeGrid& grid, std::size_t dimension, int first, int stride) {
  if (dimension == 0) return static_cast<Term>(first + 1);
  const int below = stride / grid.factors[dimension - 1];
  Term sum = 0;
  for (int digit = 0; digit < grid.factors[dimension - 1]; ++digit) {
    const Term next = expected_term(grid, dimension - 1, first + digit * below, below);
    sum = digit == 0 ? next : plus(sum, next);
  }
  return sum;
}

TEST(NodeSchedule, GivesAllNodesTheSameOrderOfSummationInBothForms) {
  for (const int nodes :
       {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 19, 23, 31, 37, 64, 97, 100, 127, 128, 251, 997, 1009}) {
    SCOPED_TRACE(nodes);
    const std::size_t count = 1500;
    const Network slices(nodes, count, ScheduleForm::slices);
    const Network whole(nodes, count, ScheduleForm::whole);
    for (const auto& terms : slices.terms()) {
      ASSERT_EQ(terms, std::vector<Term>(count, slices.terms()[0][0]))
          << "an element has another order of summation";
    }
    EXPECT_EQ(slices.terms(), whole.terms());
    const NodeGrid grid = grid_of(nodes);
    if (grid.surplus() == 0) {
      EXPECT_EQ(slices.terms()[0][0], expected_term(grid, grid.factors.size(), 0, nodes));
    }
  }
}

// In any order.
std::multiset<std::array<std::size_t, 3>> messages(const std::vector<Round::Message>& all) {
  std::multiset<std::array<std::size_t, 3>> found;
  for (const auto& message : all)
    found.insert({static_cast<std::size_t>(message.peer), message.begin, message.count});
  return found;
}

TEST(NodeSchedule, InARoundEachNodeIsTheFirstReceiverOfOneOther) {
  const NodeGrid grid = grid_of(36);
  for (const ScheduleForm form : {ScheduleForm::whole, ScheduleForm::slices}) {
    std::vector<std::set<int>> first_receivers;
    for (int node = 0; node < 36; ++node) {
      const auto rounds = schedule_of(grid, node, 3600, form, DataType::f32);
      first_receivers.resize(rounds.size());
      for (std::size_t round = 0; round < rounds.size(); ++round)
        first_receivers[round].insert(rounds[round].sends.front().peer);
    }
    for (const auto& receivers : first_receivers) EXPECT_EQ(receivers.size(), 36U);
  }
}

TEST(NodeSchedule, GivesEveryNodeItsBlockAndThenAllBlocks) {
  for (const int nodes : {2, 6, 16, 17, 36, 97}) {
    SCOPED_TRACE(nodes);
    const NodeGrid grid = full_grid_of(nodes);
    const std::size_t count = 3;
    std::set<int> blocks;
    std::size_t sent = 0;
    for (int node = 0; node < nodes; ++node) {
      blocks.insert(block_of(grid, node));
      const auto scatter = reduce_scatter_schedule_of(grid, node, count);
      const auto gather = all_gather_schedule_of(grid, node, count);
      ASSERT_EQ(scatter.size(), grid.factors.size());
      ASSERT_EQ(gather.size(), grid.factors.size());
      EXPECT_EQ(scatter.back().begin, static_cast<std::size_t>(block_of(grid, node)) * count);
      EXPECT_EQ(scatter.back().count, count);
      // A gather is a scatter backwards: the same messages in the other direction.
      for (std::size_t round = 0; round < gather.size(); ++round) {
        const Round& opposite = scatter[scatter.size() - 1 - round];
        EXPECT_EQ(messages(gather[round].sends), messages(opposite.receives));
        EXPECT_EQ(messages(gather[round].receives), messages(opposite.sends));
        for (const auto& message : gather[round].sends) sent += message.count;
      }
    }
    EXPECT_EQ(blocks.size(), static_cast<std::size_t>(nodes));
    EXPECT_EQ(sent, static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes - 1) * count);
  }
}

TEST(NodeSchedule, HasElementsForNobodyIfThereAreFewerThanNodes) {
  for (const std::size_t count : {0, 1, 65}) {
    const Network network(17, count, ScheduleForm::slices);
    EXPECT_EQ(network.terms(), Network(17, count, ScheduleForm::whole).terms());
  }
}

TEST(NodeSchedule, NeedsFewRoundsAndPeersAndNoMoreBytesThanTheData) {
  for (const int nodes : {64, 997, 1000, 1009, 1024}) {
    SCOPED_TRACE(nodes);
    const std::size_t count = static_cast<std::size_t>(nodes) * 64;
    const NodeGrid grid = grid_of(nodes);
    std::size_t max_sent = 0;
    for (int node = 0; node < nodes; ++node) {
      const auto rounds = schedule_of(grid, node, count, ScheduleForm::slices, DataType::u8);
      EXPECT_LE(rounds.size(), 10U);
      std::set<int> peers;
      std::size_t sent = 0;
      for (const Round& round : rounds) {
        for (const auto& message : round.receives) peers.insert(message.peer);
        for (const auto& message : round.sends) {
          peers.insert(message.peer);
          sent += message.count;
        }
      }
      EXPECT_LE(peers.size(), 30U);
      max_sent = std::max(max_sent, sent);
    }
    // 2 (1 - 1/N) of the data, and for a surplus node one more part each way; parts begin on cache lines.
    const double extra = grid.surplus() > 0 ? 1.0 / grid.factors[0] : 0;
    EXPECT_LE(static_cast<double>(max_sent), static_cast<double>(count) * (2 + extra) * 1.05);
  }
}

TEST(NodeSchedule, SendsWholeVectorsOnlyWhileLatencyCosts) {
  const NetworkCost ethernet{.latency = 20e-6, .per_byte = 1 / 1.2e9, .sum_per_byte = 1 / 8e9};
  for (const int nodes : {2, 5, 16, 1000}) {
    const NodeGrid grid = grid_of(nodes);
    EXPECT_EQ(plan_of(grid, 1024, ethernet).form, ScheduleForm::whole) << nodes;
    EXPECT_EQ(plan_of(grid, std::size_t{25} << 20, ethernet).form, ScheduleForm::slices) << nodes;
  }
}

// NodeExchange sends the first data for the next node with the request, if the round reduces.
TEST(NodeSchedule, NeighboursAgreeWhatTravelsBetweenThemInTheFirstRound) {
  for (int nodes = 2; nodes < 150; ++nodes) {
    const NodeGrid grid = grid_of(nodes);
    for (const auto form : {ScheduleForm::whole, ScheduleForm::slices}) {
      std::vector<Round> first;
      for (int node = 0; node < nodes; ++node) {
        first.push_back(schedule_of(grid, node, 100'000, form, DataType::f32).front());
      }
      const auto elements = [](const std::vector<Round::Message>& messages, int peer) {
        std::size_t count = 0;
        for (const auto& message : messages) count += message.peer == peer ? message.count : 0;
        return count;
      };
      for (int node = 0; node < nodes; ++node) {
        const int next = (node + 1) % nodes;
        const Round& gives = first[static_cast<std::size_t>(node)];
        const Round& gets = first[static_cast<std::size_t>(next)];
        const std::size_t sent = gives.reduces ? elements(gives.sends, next) : 0;
        EXPECT_EQ(sent, gets.reduces ? elements(gets.receives, node) : 0) << node << " of " << nodes;
      }
    }
  }
}

// The last node is before node 0. Data travels with a request only if both nodes add up in their first round, and a surplus
// node does not.
TEST(NodeSchedule, ASurplusNodeNeverSendsToTheGroupOfNodeZero) {
  int with_surplus = 0;
  for (int nodes = 2; nodes <= 4096; ++nodes) {
    const NodeGrid grid = grid_of(nodes);
    if (grid.surplus() == 0) continue;
    ++with_surplus;
    for (const auto form : {ScheduleForm::whole, ScheduleForm::slices}) {
      const Round first = schedule_of(grid, nodes - 1, 100'000, form, DataType::f32).front();
      EXPECT_FALSE(first.reduces);
      ASSERT_FALSE(first.sends.empty());
      for (const auto& message : first.sends) EXPECT_GE(message.peer, grid.factors.front()) << nodes;
    }
  }
  EXPECT_GT(with_surplus, 1000);
}

TEST(NodeSchedule, SendsMessagesOfTheBestLength) {
  NetworkCost cost{.latency = 20e-6, .per_byte = 1 / 1.2e9, .sum_per_byte = 1 / 8e9};
  for (const std::size_t best : {std::size_t{60'000}, std::size_t{1} << 20}) {
    cost.short_message_bytes = cost.message_bytes = best;
    for (const int nodes : {2, 5, 16}) {
      const NodeGrid grid = grid_of(nodes);
      const auto longest_of = [&](std::size_t bytes) {
        const ExchangePlan plan = plan_of(grid, bytes, cost);
        std::size_t longest = 0;
        for (const Round& round :
             schedule_of(grid, 0, std::min(bytes, plan.segment_bytes), plan.form, DataType::u8)) {
          for (const auto& message : round.sends) longest = std::max(longest, message.count);
        }
        return longest;
      };
      for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{25} << 20}) {
        EXPECT_LE(longest_of(bytes), best + 64) << nodes;  // parts begin on cache lines
      }
      if (best < (1 << 20)) {
        EXPECT_GE(longest_of(std::size_t{25} << 20), best * 0.99) << nodes;
      }
    }
  }
  // Short operations have a length of their own. Segments are equally long.
  cost.short_message_bytes = 60'000;
  cost.latency = 1e-6;
  EXPECT_EQ(plan_of(grid_of(2), std::size_t{120} << 10, cost).segment_bytes, std::size_t{60} << 10);
  EXPECT_EQ(plan_of(grid_of(2), 4 * kShortOperation, cost).segment_bytes, std::size_t{1} << 20);
  // Whole data that is too long to travel with the request costs a message more, unless its first segment is not.
  cost.latency = 10e-6;
  EXPECT_EQ(plan_of(grid_of(2), kMaxRiding, cost).form, ScheduleForm::whole);
  EXPECT_EQ(plan_of(grid_of(2), 2 * kMaxRiding, cost).segment_bytes, kMaxRiding);
  EXPECT_EQ(plan_of(grid_of(2), 2 * kMaxRiding, cost).form, ScheduleForm::whole);
  EXPECT_EQ(plan_of(grid_of(2), 32 * kMaxRiding, cost).form, ScheduleForm::slices);
}

}  // namespace
}  // namespace lockstep::comm::cpu
