// The ranks of a node are threads of one process, so that the thread sanitizer sees all of them.
#include "runtime/comm/cpu/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

namespace lockstep::comm::cpu {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Node {
 public:
  explicit Node(int ranks) : slots_(OperationSlots::create(ranks)), ranks_(ranks) {}

  NodeGroup group(int rank) const {
    std::vector<int> all(static_cast<std::size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    return {slots_,
            {.rank = rank, .size = ranks_, .local_rank = rank, .local_size = ranks_, .node_name = "here"},
            all,
            nullptr};
  }

  /// Runs `body` as every rank and waits for all.
  void run(const std::function<void(NodeGroup&, int rank)>& body) const {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        auto mine = group(rank);
        body(mine, rank);
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  OperationSlots slots_;
  int ranks_;
};

std::shared_ptr<Task> sum_of(std::vector<float>& values, ReduceOptions options = {}) {
  auto task = std::make_shared<Task>();
  task->request = {OperationKind::all_reduce, DataType::f32, options.op, 0, values.size()};
  task->label = "values";
  task->buffer = {values.data(), values.size(), DataType::f32};
  task->options = std::move(options);
  task->operation = std::make_shared<Operation>("values");
  return task;
}

void wait_for(NodeGroup& group, const Task& task) {
  while (!task.operation->done()) {
    const auto seen = group.slots().event_count();
    if (!group.advance(true)) group.slots().sleep(seen, std::chrono::seconds(10));
  }
}

TEST(NodeGroup, AddsUpDataInSlotsInSharedMemoryAndInOtherMemory) {
  const int ranks = 3;
  Node(ranks).run([&](NodeGroup& group, int rank) {
    for (int round = 0; round < 200; ++round) {
      const std::size_t count = round % 3 == 0 ? 5 : 20'000 + static_cast<std::size_t>(round);
      std::vector<float> values(count, static_cast<float>(rank + round));
      const auto task = sum_of(values);
      group.add(task);
      wait_for(group, *task);
      ASSERT_THAT(values, Each(static_cast<float>(3 * round + 3)));
    }
  });
}

TEST(NodeGroup, ExchangesMessagesInSharedMemory) {
  const int ranks = 3;
  Node(ranks).run([&](NodeGroup& group, int rank) {
    for (std::size_t round = 0; round < 100; ++round) {
      const int next = (rank + 1) % ranks;
      const int before = (rank + 2) % ranks;
      std::vector<int> sent(round * 50, rank);
      std::vector<int> received(round * 50, -1);
      auto task = std::make_shared<Task>();
      task->request.kind = OperationKind::exchange;
      task->sends = {{next, sent.data(), sent.size() * sizeof(int)}};
      task->receives = {{before, received.data(), received.size() * sizeof(int)}};
      task->operation = std::make_shared<Operation>("messages");
      group.add(task);
      std::vector<float> values(10, 1.0F);
      const auto sum = sum_of(values);
      group.add(sum);
      wait_for(group, *sum);
      ASSERT_TRUE(task->operation->done());
      ASSERT_THAT(received, Each(before));
      ASSERT_THAT(values, Each(3.0F));
    }
  });
}

TEST(NodeGroup, TakesMoreOperationsThanThereAreSlots) {
  Node(2).run([&](NodeGroup& group, int /*rank*/) {
    std::vector<std::vector<float>> values(3 * kSlots, std::vector<float>(1, 1.0F));
    std::vector<std::shared_ptr<Task>> tasks;
    tasks.reserve(values.size());
    for (auto& value : values) tasks.push_back(sum_of(value));
    for (const auto& task : tasks) group.add(task);
    wait_for(group, *tasks.back());
    EXPECT_THAT(values, Each(ElementsAre(2.0F)));
    EXPECT_TRUE(group.idle());
  });
}

// The test runs both ranks in one thread, one after the other.
class TwoRanks : public ::testing::Test {
 protected:
  Node node_{2};
  NodeGroup first_ = node_.group(0);
  NodeGroup second_ = node_.group(1);
  std::vector<float> a_ = std::vector<float>(100'000, 1.0F);
  std::vector<float> b_ = std::vector<float>(100'000, 2.0F);
};

TEST_F(TwoRanks, AComputingRankDoesItsOwnShareOnly) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(one);
  first_.advance(false);
  second_.add(two);
  second_.advance(false);
  EXPECT_FALSE(two->operation->done()) << "the first rank's share is not done";
  first_.advance(false);
  EXPECT_TRUE(one->operation->done());
  second_.advance(false);
  EXPECT_TRUE(two->operation->done());
  EXPECT_THAT(a_, Each(3.0F));
  EXPECT_THAT(b_, Each(3.0F));
}

TEST_F(TwoRanks, AWaitingRankDoesTheOtherRanksShareToo) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(one);
  first_.advance(false);
  second_.add(two);
  second_.advance(true);
  EXPECT_TRUE(two->operation->done());
  first_.advance(false);
  EXPECT_TRUE(one->operation->done());
  EXPECT_THAT(a_, Each(3.0F));
}

TEST_F(TwoRanks, AComputingRankLeavesTheWorkToAWaitingRank) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(one);
  first_.advance(true);
  {
    const OperationSlots::Waiting waiting(first_.slots());
    second_.add(two);
    second_.advance(false);
    EXPECT_EQ(first_.slots().slot(0, 0).done_chunks, 0U);
    first_.advance(true);
  }
  EXPECT_TRUE(one->operation->done());
  EXPECT_THAT(a_, Each(3.0F));
}

TEST_F(TwoRanks, AScaleIsReadAfterTheOperationThatSetsIt) {
  struct Rank {
    std::vector<float> count{1.0F};
    double scale = 0;
  };
  Rank one;
  Rank two;
  const auto add = [](NodeGroup& group, Rank& rank, std::vector<float>& values) {
    group.add(sum_of(rank.count, {.then = [&rank] { rank.scale = 1.0 / rank.count[0]; }}));
    auto scaled = sum_of(values, {.scale = &rank.scale});
    group.add(scaled);
    return scaled;
  };
  const auto first = add(first_, one, a_);
  const auto second = add(second_, two, b_);
  while (!first->operation->done() || !second->operation->done()) {
    first_.advance(true);
    second_.advance(true);
  }
  EXPECT_THAT(a_, Each(1.5F));
}

TEST_F(TwoRanks, NamesTheRankThatAskedLast) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(two);  // asked for after `one`
  second_.add(one);
  first_.advance(true);
  second_.advance(true);
  first_.advance(true);
  EXPECT_EQ(one->operation->times().late_rank, 0);
  EXPECT_EQ(two->operation->times().late_rank, 0);
  EXPECT_EQ(one->operation->times().all_asked_ns, two->operation->times().asked_ns);
}

TEST_F(TwoRanks, KeepsItsMemoryAliveUntilItsEnd) {
  auto kept = std::make_shared<int>(0);
  const auto one = sum_of(a_, {.keep = kept});
  const std::weak_ptr<int> seen = kept;
  kept.reset();
  first_.add(one);
  first_.advance(false);
  EXPECT_FALSE(seen.expired());
  const auto two = sum_of(b_);
  second_.add(two);
  second_.advance(true);
  first_.advance(true);
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace lockstep::comm::cpu
