// The ranks of a node plan together: each block once, whoever needs it first.
#include "runtime/data/shared_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>

#include "common/error.h"
#include "runtime/data/plan/epoch_planner.h"
#include "runtime/data/plan/mixture_planner.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

comm::Communicator& communicator() {
  return lockstep::testing::world().communicator();
}

void meet() {
  communicator().barrier("the test")->wait();
}

std::uint64_t sum_over_ranks(std::uint64_t mine) {
  auto sum = static_cast<std::int64_t>(mine);
  communicator().all_reduce({&sum, 1, comm::DataType::i64}, "the test")->wait();
  return static_cast<std::uint64_t>(sum);
}

// Tests of a rank that is alone on its node would test nothing.
class OnANode : public ::testing::Test {
 protected:
  void SetUp() override {
    node_ = OncePerNode::of_node(communicator());
    if (communicator().place().local_size == 1) {
      EXPECT_EQ(node_, nullptr);
      GTEST_SKIP() << "needs two ranks on a node";
    }
    ASSERT_NE(node_, nullptr);
  }

  bool first() const { return communicator().place().local_rank == 0; }
  std::uint64_t nodes() const { return static_cast<std::uint64_t>(communicator().place().nodes); }

  // Each node's first rank does something, then its others do.
  template <typename First, typename Others>
  void first_then_others(const First& first_does, const Others& others_do) const {
    if (first()) first_does();
    meet();
    if (!first()) others_do();
  }

  std::shared_ptr<OncePerNode> node_;
};

OncePerNode::Bytes some_bytes(std::uint64_t seed) {
  return OncePerNode::Bytes(1 + seed * 7919 % 100000, static_cast<std::byte>(seed));
}

using OncePerNodeTest = OnANode;

TEST_F(OncePerNodeTest, OneRankOfEachNodeDoesTheWorkAndAllHaveItsResult) {
  constexpr std::uint64_t kPieces = 200;
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    OncePerNode::Bytes mine;
    const auto got = node_->get({i, 0}, [&] { return mine = some_bytes(i); });
    EXPECT_EQ(got.value_or(mine), some_bytes(i)) << i;
    meet();  // nobody lags behind
  }
  EXPECT_EQ(sum_over_ranks(node_->made()), kPieces * nodes());
}

TEST_F(OncePerNodeTest, RanksThatComeInAnyOrderAndNotForAllHoldUpNobody) {
  const auto rank = static_cast<std::uint64_t>(communicator().rank());
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::uint64_t which = (i * (2 * rank + 1)) % 64;
    OncePerNode::Bytes mine;
    const auto got = node_->get({which, 1}, [&] { return mine = some_bytes(which); });
    ASSERT_EQ(got.value_or(mine), some_bytes(which)) << i;
  }
}

TEST_F(OncePerNodeTest, WhatIsGoneIsMadeAgain) {
  const auto ask = [&](std::uint64_t which) {
    OncePerNode::Bytes mine;
    const auto got = node_->get({which, 0}, [&] { return mine = some_bytes(which); });
    EXPECT_EQ(got.value_or(mine), some_bytes(which));
  };
  first_then_others(
      [&] {
        for (std::uint64_t i = 0; i < 20; ++i) ask(i);
        EXPECT_EQ(node_->made(), 20U);
      },
      [&] { ask(0); });
  EXPECT_EQ(sum_over_ranks(node_->made()), 21 * nodes()) << "only the last few are kept";
}

TEST_F(OncePerNodeTest, WhatGoesWrongIsThrownOnAllRanksUntilItIsTriedAgain) {
  const auto does = [] { return some_bytes(3); };
  const auto no_luck = []() -> OncePerNode::Bytes { throw Error("no luck"); };
  const auto wordy = []() -> OncePerNode::Bytes { throw Error(std::string(5000, 'x')); };
  const auto refuses = []() -> OncePerNode::Bytes { throw UsageError("not so"); };
  first_then_others(
      [&] {
        EXPECT_THROW(node_->get({1, 1}, no_luck), Error);
        EXPECT_THROW(node_->get({1, 2}, wordy), Error);
        EXPECT_THROW(node_->get({1, 3}, refuses), UsageError);
      },
      [&] {
        EXPECT_THAT([&] { node_->get({1, 1}, does); }, ThrowsMessage<Error>("no luck"));
        EXPECT_THAT([&] { node_->get({1, 2}, does); }, ThrowsMessage<Error>(HasSubstr("xxx")));
        EXPECT_THAT([&] { node_->get({1, 3}, does); }, ThrowsMessage<UsageError>("not so"));
      });
  meet();
  node_->forget_failures();
  EXPECT_NO_THROW(node_->get({1, 1}, does));
}

TEST_F(OncePerNodeTest, ARankThatRunsOutOfMemoryLeavesTheWorkToTheOthers) {
  first_then_others(
      [&] {
        EXPECT_THROW(node_->get({1, 5}, []() -> OncePerNode::Bytes { throw std::bad_alloc(); }),
                     std::bad_alloc);
      },
      [&] {
        OncePerNode::Bytes mine;
        const auto got = node_->get({1, 5}, [&] { return mine = some_bytes(1); });
        EXPECT_EQ(got.value_or(mine), some_bytes(1));
      });
  meet();
}

// Keeps this process from making files of more than a page, and so from sharing memory.
class NoMemoryToShare {
 public:
  NoMemoryToShare() : before_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit page{4096, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &page);
  }
  ~NoMemoryToShare() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    ::signal(SIGXFSZ, before_);
  }
  NoMemoryToShare(const NoMemoryToShare&) = delete;
  NoMemoryToShare& operator=(const NoMemoryToShare&) = delete;

 private:
  rlimit limit_{};
  sighandler_t before_;
};

TEST_F(OncePerNodeTest, WhatCannotBeSharedAllOthersMakeAtTheSameTime) {
  const auto node = OncePerNode::of_node(communicator(), std::chrono::seconds(30));
  bool met = false;
  const auto begin = std::chrono::steady_clock::now();
  first_then_others(
      [&] {
        const NoMemoryToShare none;
        EXPECT_FALSE(node->get({1, 6}, [] { return some_bytes(7); }));
      },
      [&] {
        EXPECT_FALSE(node->get({1, 6}, [&] {
          meet();  // would wait for one that waits for this
          met = true;
          return some_bytes(7);
        }));
      });
  if (first() || !met) meet();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(node->made(), 1U);
}

// The kernel's letter for what a process does: T where it is stopped.
char state_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto name_ends = text.rfind(')');
  return name_ends == std::string::npos ? '?' : text.at(name_ends + 2);
}

TEST_F(OncePerNodeTest, ARankThatIsStoppedAtItsWorkHoldsUpNobodyForLong) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kMostWait(300);
  const auto node = OncePerNode::of_node(communicator(), kMostWait);
  const comm::Place& place = communicator().place();
  std::array<std::int64_t, 2> mine{first() ? place.node : -1, ::getpid()};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(place.size));
  communicator().all_gather({mine.data(), sizeof mine, comm::DataType::u8}, all.data(), "the test")->wait();
  if (first()) {
    EXPECT_FALSE(node->get({1, 4}, [] {
      ::raise(SIGSTOP);
      return some_bytes(1);
    }));
  } else if (place.local_rank + 1 == place.local_size) {
    const auto card = std::find(all.begin(), all.end(), place.node);
    const auto stopped = static_cast<pid_t>(*(card + 1));
    while (state_of(stopped) != 'T') std::this_thread::yield();
    const auto begin = Clock::now();
    EXPECT_FALSE(node->get({1, 4}, [] { return some_bytes(1); }));
    const auto waited = Clock::now() - begin;
    ::kill(stopped, SIGCONT);
    EXPECT_GE(waited, kMostWait);
    EXPECT_LT(waited, 10 * kMostWait);
    EXPECT_EQ(node->made(), 1U);
  }
  meet();
  EXPECT_TRUE(node->get({1, 4}, [] { return some_bytes(2); }) == some_bytes(1)) << "its work is not lost";
  meet();
}

std::vector<std::uint32_t> some_lengths(std::size_t samples) {
  std::vector<std::uint32_t> lengths(samples);
  std::uint32_t word = 1;
  for (std::uint32_t& length : lengths) length = 20 + (word = word * 1664525 + 1013904223) % 500;
  return lengths;
}

class SharedPlanTest : public OnANode {
 protected:
  using Make = std::function<std::shared_ptr<BlockwisePlanner>(const PlanState* from)>;

  Make epoch(const PlanOptions& options) const {
    return [this, options](const PlanState* from) -> std::shared_ptr<BlockwisePlanner> {
      if (from != nullptr) return std::make_shared<EpochPlanner>(source_, options, *from);
      return std::make_shared<EpochPlanner>(source_, options);
    };
  }
  Make mixture(const PlanOptions& options, std::uint64_t steps = 200) const {
    Mixture mixture;
    mixture.parts = {{"a", 280000}, {"b", 20000}};
    for (std::uint64_t first = 0; first < 200; first += 40) {  // a block each
      mixture.ranges.push_back({.first_step = first,
                                .weights = {0.9, 0.1 * static_cast<double>(first)},
                                .longest = first < 100 ? 300U : 0U});
    }
    mixture.steps = steps;
    return [this, options, mixture](const PlanState* from) -> std::shared_ptr<BlockwisePlanner> {
      if (from != nullptr) return std::make_shared<MixturePlanner>(source_, options, mixture, *from);
      return std::make_shared<MixturePlanner>(source_, options, mixture);
    };
  }

  static PlanOptions options() {
    return {.ranks = communicator().size(), .cap = 32768, .accumulate = 2, .cost = {3000, 1}};
  }

  std::shared_ptr<BlockwisePlanner> shared(const Make& make, const PlanState* from = nullptr) const {
    return std::make_shared<SharedPlan>(make(from), node_);
  }

  // The shared plan is what a rank alone would have planned, with what happens to the planner in between.
  void expect_same(BlockwisePlanner& shared, BlockwisePlanner& alone,
                   const std::function<void(BlockwisePlanner&, std::size_t)>& between = nullptr) {
    PlannedBlock one;
    PlannedBlock other;
    std::size_t blocks = 0;
    for (bool more = true; more; ++blocks) {
      if (between && blocks > 0) {
        between(shared, blocks);
        between(alone, blocks);
      }
      more = shared.next_block(one);
      ASSERT_EQ(more, alone.next_block(other));
      EXPECT_TRUE(std::ranges::equal(one.plan.ids(), other.plan.ids())) << "block " << blocks;
      EXPECT_TRUE(std::ranges::equal(one.plan.ends(), other.plan.ends())) << "block " << blocks;
      EXPECT_EQ(fingerprint_of(one), fingerprint_of(other));
      EXPECT_EQ(one.plan.samples(), other.plan.samples());
      EXPECT_EQ(one.plan.fingerprint(), other.plan.fingerprint());
      EXPECT_EQ(nlohmann::json(one.start), nlohmann::json(other.start));
      const std::uint64_t some = one.plan.micro_batches_per_rank() / 3;
      EXPECT_EQ(nlohmann::json(shared.state_after(one, some)),
                nlohmann::json(alone.state_after(other, some)));
      meet();
    }
    EXPECT_GT(blocks, 2U) << "a plan of one block shows nothing";
    blocks_ += blocks;
    EXPECT_EQ(sum_over_ranks(node_->made()), blocks_ * nodes()) << "planned more often than once on a node";
  }

  std::vector<std::uint32_t> lengths_ = some_lengths(300000);
  LengthsInMemory source_{lengths_, "data"};
  std::uint64_t blocks_ = 0;  // that were planned
};

TEST_F(SharedPlanTest, OneRankOfEachNodePlansABlockAndAllHaveIt) {
  const Make make = epoch(options());
  expect_same(*shared(make), *make(nullptr));
}

TEST_F(SharedPlanTest, PlansMixturesToo) {
  const Make make = mixture(options());
  expect_same(*shared(make), *make(nullptr));
  PlanOptions padded = options();
  padded.padded = true;
  padded.seed = 5;
  const Make other = mixture(padded);
  expect_same(*shared(other), *other(nullptr));
}

TEST_F(SharedPlanTest, MixturesOfUnequallyManyStepsAreNotTakenForEachOther) {
  const auto long_one = shared(mixture(options()));
  const auto short_one = shared(mixture(options(), 20));
  PlannedBlock block;
  long_one->next_block(block);
  EXPECT_GT(block.plan.steps(), 20U);
  meet();  // what was planned for the one is there when the other is asked for
  short_one->next_block(block);
  EXPECT_EQ(block.plan.steps(), 20U);
  meet();
}

TEST_F(SharedPlanTest, AnotherCostTakesEffectWithTheBlockForWhichAllWereTold) {
  const Make make = epoch(options());
  expect_same(*shared(make), *make(nullptr), [](BlockwisePlanner& planner, std::size_t block) {
    planner.change({1000.0 * static_cast<double>(block), 1}, {});
  });
}

// Making the planner plans the block that was begun, on each rank; from there on they share.
TEST_F(SharedPlanTest, GoesOnFromAState) {
  const Make make = epoch(options());
  PlannedBlock block;
  const auto before = make(nullptr);
  before->next_block(block);
  const PlanState state = before->state_after(block, 7);
  const auto resumed = shared(make, &state);
  expect_same(*resumed, *make(&state));
  PlanOptions larger = options();  // what is left of the block is planned anew
  larger.cap = 20000;
  const Make other = epoch(larger);
  expect_same(*shared(other, &state), *other(&state));
}

TEST_F(SharedPlanTest, ARankThatLagsBehindPlansForItself) {
  PlanOptions other = options();
  other.seed = 3;
  const Make make = mixture(other);
  const auto all_of = [](BlockwisePlanner& planner) {
    std::vector<std::string> blocks;
    for (PlannedBlock block; planner.next_block(block);) blocks.push_back(fingerprint_of(block));
    return blocks;
  };
  const auto expected = all_of(*make(nullptr));
  // What the first blocks were is gone when the others come.
  const auto plan_all = [&] { EXPECT_EQ(all_of(*shared(make)), expected); };
  first_then_others(plan_all, [] {});
  const std::uint64_t alone = node_->made();
  meet();
  if (!first()) plan_all();
  EXPECT_EQ(sum_over_ranks(alone), sum_over_ranks(first() ? expected.size() + 1 : 0));
  EXPECT_GT(sum_over_ranks(node_->made()), sum_over_ranks(alone)) << "nobody planned what was gone";
}

TEST_F(SharedPlanTest, ASampleThatCannotBePlannedIsNamedOnEveryRank) {
  if (first()) lengths_[4321] = 90000;  // the others have it from there
  const auto plan = shared(epoch(options()));
  const auto throws = [&] {
    PlannedBlock block;
    EXPECT_THAT(
        [&] {
          while (plan->next_block(block)) {
          }
        },
        ThrowsMessage<Error>(HasSubstr("sample 4321 has 90000 tokens")));
  };
  first_then_others(throws, throws);
  meet();
}

}  // namespace
}  // namespace lockstep::data
