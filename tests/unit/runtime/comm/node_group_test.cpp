// The ranks of a node as threads of one process, which thread sanitizers can look at.
#include "runtime/comm/shm/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "common/error.h"

namespace lockstep::comm::shm {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Node {
 public:
  explicit Node(int ranks) : board_(Board::make(ranks)), ranks_(ranks) {}

  NodeGroup group(int rank) const {
    std::vector<int> all(static_cast<std::size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    return {board_,
            {.rank = rank, .size = ranks_, .local_rank = rank, .local_size = ranks_, .node_name = "here"},
            all,
            nullptr};
  }

  /// Runs it as every rank and waits for all.
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
  Board board_;
  int ranks_;
};

std::shared_ptr<Task> sum_of(std::vector<float>& values, ReduceOptions options = {}) {
  auto task = std::make_shared<Task>();
  task->request = {Kind::all_reduce, DataType::f32, options.op, 0, values.size()};
  task->label = "values";
  task->buffer = {values.data(), values.size(), DataType::f32};
  task->options = std::move(options);
  task->operation = std::make_shared<Operation>("values");
  return task;
}

void wait_for(NodeGroup& group, const Task& task) {
  while (!task.operation->done()) {
    const auto heard = group.board().listen();
    if (!group.advance(true)) group.board().sleep(heard, std::chrono::seconds(10));
  }
}

TEST(NodeGroup, AddsUpWhatIsInTheBoardInSharedMemoryAndElsewhere) {
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

TEST(NodeGroup, HoldsMoreOperationsThanTheRingHasSlots) {
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

// The test's one thread is both ranks, one after the other.
class TwoRanks : public ::testing::Test {
 protected:
  Node node_{2};
  NodeGroup first_ = node_.group(0);
  NodeGroup second_ = node_.group(1);
  std::vector<float> a_ = std::vector<float>(100'000, 1.0F);
  std::vector<float> b_ = std::vector<float>(100'000, 2.0F);
};

TEST_F(TwoRanks, ARankThatComputesDoesItsShareAndLeavesTheOthers) {
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

TEST_F(TwoRanks, ARankThatWaitsDoesTheOthersShareToo) {
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

TEST_F(TwoRanks, ARankThatComputesLeavesTheWorkToOneThatWaits) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(one);
  first_.advance(true);
  {
    const Board::Waiting waiting(first_.board());
    second_.add(two);
    second_.advance(false);
    EXPECT_EQ(first_.board().slot(0, 0).done_chunks, 0U);
    first_.advance(true);
  }
  EXPECT_TRUE(one->operation->done());
  EXPECT_THAT(a_, Each(3.0F));
}

TEST_F(TwoRanks, AScaleIsReadWhenWhatDecidesItHasEnded) {
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

TEST_F(TwoRanks, SaysWhoAskedLast) {
  const auto one = sum_of(a_);
  const auto two = sum_of(b_);
  first_.add(two);  // asked for after `one`
  second_.add(one);
  first_.advance(true);
  second_.advance(true);
  first_.advance(true);
  EXPECT_EQ(one->operation->times().last_rank, 0);
  EXPECT_EQ(two->operation->times().last_rank, 0);
  EXPECT_EQ(one->operation->times().all_asked_ns, two->operation->times().asked_ns);
}

TEST_F(TwoRanks, KeepsWhatItWorksOnUntilItsEnd) {
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

TEST(Segment, IsFoundFromAnyAddressInItAndFromNoOther) {
  const auto memory = allocate(10'000);
  auto* bytes = static_cast<std::byte*>(memory.get());
  ASSERT_TRUE(find(bytes + 100, 9'900));
  EXPECT_EQ(find(bytes + 100, 9'900)->offset, 100U);
  EXPECT_FALSE(find(bytes, std::size_t{1} << 30)) << "ends before";
  int elsewhere = 0;
  EXPECT_FALSE(find(&elsewhere, sizeof elsewhere));
}

TEST(Segment, OfTwoMebibytesIsAlignedToThem) {
  const auto memory = allocate(std::size_t{3} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % (std::size_t{2} << 20), 0U);
}

TEST(Segment, ShowsWhatItsOwnerWritesAndOutlivesItsOwnersPointer) {
  auto memory = allocate(64);
  const auto seen = map(find(memory.get(), 64)->segment);
  *static_cast<int*>(memory.get()) = 42;
  EXPECT_EQ(*static_cast<int*>(seen.get()), 42);
  memory.reset();
  EXPECT_EQ(*static_cast<int*>(seen.get()), 42);
}

TEST(Segment, OfAnotherProcessThanTheOneThatWasMeantIsRefused) {
  const auto memory = allocate(64);
  auto name = find(memory.get(), 64)->segment;
  name.inode += 1;
  EXPECT_THROW(map(name), Error);
  name.descriptor = 1'000'000;
  EXPECT_THROW(map(name), Error);
}

TEST(Segment, ThatCannotBeHadIsReportedInBytes) {
  try {
    allocate(std::size_t{1} << 60);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("1152921504606846976 bytes) of memory to share"));
  }
}

}  // namespace
}  // namespace lockstep::comm::shm
