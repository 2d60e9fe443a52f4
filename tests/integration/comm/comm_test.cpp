#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "runtime/comm/clock_offset.h"
#include "runtime/comm/cpu/node_schedule.h"
#include "runtime/comm/half.h"
#include "tests/integration/mpi_world.h"

namespace {

thread_local bool testsome_fails = false;  // once

}  // namespace

extern "C" int MPI_Testsome(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  if (std::exchange(testsome_fails, false)) return MPI_ERR_OTHER;
  return PMPI_Testsome(count, requests, done, indices, statuses);
}

namespace lockstep::comm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::world;

Communicator& communicator() {
  return world().communicator();
}

// Numbers whose sums depend on the order of summation.
double element(int rank, std::size_t i) {
  return std::sin(static_cast<double>(i) * 12.9898 + rank * 78.233) *
         std::pow(10.0, static_cast<double>((i + static_cast<std::size_t>(rank)) % 9));
}

template <typename T>
std::vector<T> gather(const std::vector<T>& mine, DataType type) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(world().size()));
  communicator().all_gather({const_cast<T*>(mine.data()), mine.size(), type}, all.data(), "results")->wait();
  return all;
}

template <typename T>
void add_to(std::vector<T>& sum, const std::vector<T>& next) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + next[i]);
}

// Every node sums its ranks in their order. Then the nodes' sums are summed along one dimension of their grid after the
// other, in the order of the digits; a surplus node comes last in its group.
template <typename T>
std::vector<T> sum_in_order(std::size_t count) {
  const auto nodes = gather(std::vector<std::int32_t>{world().node()}, DataType::i32);
  std::vector<std::vector<T>> sums(static_cast<std::size_t>(world().nodes()));
  for (int rank = 0; rank < world().size(); ++rank) {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(element(rank, i));
    auto& of_node = sums[static_cast<std::size_t>(nodes[static_cast<std::size_t>(rank)])];
    if (of_node.empty()) {
      of_node = std::move(values);
    } else {
      add_to(of_node, values);
    }
  }
  const cpu::NodeGrid grid = cpu::grid_of(world().nodes());
  const std::vector<std::vector<T>> surplus(sums.begin() + grid.regular(), sums.end());
  sums.resize(static_cast<std::size_t>(grid.regular()));
  for (const int factor : grid.factors) {
    std::vector<std::vector<T>> groups;
    for (std::size_t node = 0; node < sums.size(); ++node) {
      if (node % static_cast<std::size_t>(factor) == 0) {
        groups.push_back(sums[node]);
      } else {
        add_to(groups.back(), sums[node]);
      }
    }
    if (sums.size() == static_cast<std::size_t>(grid.regular())) {
      for (std::size_t i = 0; i < surplus.size(); ++i) add_to(groups[groups.size() - 1 - i], surplus[i]);
    }
    sums = std::move(groups);
  }
  return sums[0];
}

template <typename T>
void expect_same_bits(const std::vector<T>& left, const std::vector<T>& right) {
  ASSERT_EQ(left.size(), right.size());
  if (!left.empty()) {
    EXPECT_EQ(std::memcmp(left.data(), right.data(), left.size() * sizeof(T)), 0);
  }
}

template <typename T>
void check_sum(std::size_t count, DataType type) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(element(world().rank(), i));
  communicator().all_reduce({values.data(), count, type}, "values")->wait();
  expect_same_bits(values, sum_in_order<T>(count));
}

TEST(AllReduce, SumsInAFixedOrderWithTheSameBitsOnAllRanks) {
  for (const std::size_t count : {0, 1, 7, 1000, 4096, 8192, 8193, 20'000, 65'537, 3'000'001}) {
    SCOPED_TRACE(count);
    if (world().size() > 8 && count > 1'000'000) continue;  // the expected sums take long
    check_sum<float>(count, DataType::f32);
    check_sum<double>(count, DataType::f64);
    check_sum<std::int32_t>(count / 10, DataType::i32);
    check_sum<std::int64_t>(count / 10, DataType::i64);
  }
}

TEST(AllReduce, UsesTheNetworkAsItsScheduleSays) {
  if (communicator().name() == "mpi") return;  // each rank is a node, since ranks cannot share memory
  const int nodes = communicator().place().nodes;
  std::vector<float> values(1 << 20);
  communicator().all_reduce({values.data(), values.size(), DataType::f32}, "values")->wait();
  const NetworkUse use = communicator().network_use();
  const cpu::NodeGrid grid = cpu::grid_of(nodes);
  const bool regular = communicator().place().node < grid.regular();
  // Ranks beyond the smallest node's exchange nothing.
  const bool first = communicator().place().local_rank == 0;
  if (nodes == 1) {
    EXPECT_EQ(use.rounds, 0);
  } else if (first || use.rounds > 0) {
    EXPECT_EQ(use.rounds, regular ? 2 * static_cast<int>(grid.factors.size()) : 2);
    EXPECT_LE(use.peers, 30);
    EXPECT_GE(use.peers, 1);
  }
}

TEST(ReduceScatter, SumsHalvesAsFloatAndRoundsOnce) {
  const std::size_t each = 3000;
  const auto ranks = static_cast<std::size_t>(world().size());
  // 256 + 1 is 256 in bfloat16: sums of halves would lose every 1.
  std::vector<Bf16> all(each * ranks, to_bf16(world().rank() == 0 ? 256.0F : 1.0F));
  std::vector<Bf16> mine(each);
  communicator().reduce_scatter(all.data(), {mine.data(), each, DataType::bf16}, "halves")->wait();
  const Bf16 expected = to_bf16(256.0F + static_cast<float>(world().size() - 1));
  for (const Bf16& value : mine) ASSERT_EQ(to_float(value), to_float(expected));
}

TEST(AllReduce, WorksOnMoreThanOneSegment) {
  const std::size_t count = (std::size_t{64} << 20) + 12'345;
  std::vector<std::uint8_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(world().rank()));
  communicator().all_reduce({values.data(), count, DataType::u8}, "bytes")->wait();
  const auto ranks = static_cast<std::size_t>(world().size());
  const std::size_t rank_sum = ranks * (ranks - 1) / 2;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += values[i] == static_cast<std::uint8_t>(i * 31 * ranks + rank_sum) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0U);
}

// Several at the same time, some ranks' memory in shared memory, and the last one awaited first.
TEST(AllReduce, GivesTheSameBitsInMemoryOfAnyKind) {
  const auto ranks = static_cast<std::size_t>(world().size());
  const std::size_t count = 1'500'007;
  const auto fill = [&](float* values, std::size_t round) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>(element(world().rank(), i + round));
  };
  const auto shared = communicator().allocate(count * sizeof(float));
  auto* const expected = static_cast<float*>(shared.get());
  std::vector<std::shared_ptr<void>> memory;
  std::vector<WorkHandle> works;
  const std::size_t rounds = ranks + 1;
  for (std::size_t round = 0; round < rounds; ++round) {
    const bool registered = round == static_cast<std::size_t>(world().rank());
    memory.push_back(registered ? communicator().allocate(count * sizeof(float))
                                : std::shared_ptr<void>(std::make_shared<std::vector<float>>(count)));
    if (!registered) {
      auto& values = *static_cast<std::vector<float>*>(memory.back().get());
      memory.back() = {memory.back(), values.data()};
    }
    fill(static_cast<float*>(memory.back().get()), round);
    works.push_back(communicator().all_reduce({memory.back().get(), count, DataType::f32}, "any memory",
                                              {.op = ReduceOp::average}));
  }
  works.back()->wait();
  for (std::size_t round = 0; round < rounds; ++round) {
    works[round]->wait();
    fill(expected, round);
    communicator()
        .all_reduce({expected, count, DataType::f32}, "shared memory", {.op = ReduceOp::average})
        ->wait();
    EXPECT_EQ(std::memcmp(memory[round].get(), expected, count * sizeof(float)), 0) << round;
  }
}

TEST(AllReduce, AccumulatesHalvesAsFloatAndRoundsOnce) {
  // 256 + 1 is 256 in bfloat16: sums of halves would lose every 1.
  for (const std::size_t count : {1, 50'000, 1'000'000}) {
    std::vector<Bf16> values(count, to_bf16(world().rank() == 0 ? 256.0F : 1.0F));
    communicator().all_reduce({values.data(), count, DataType::bf16}, "halves")->wait();
    const float expected = to_float(to_bf16(256.0F + static_cast<float>(world().size() - 1)));
    for (const auto value : values) ASSERT_EQ(to_float(value), expected);

    std::vector<F16> others(count, to_f16(world().rank() == 0 ? 2048.0F : 1.0F));
    communicator().all_reduce({others.data(), count, DataType::f16}, "halves")->wait();
    const float expected_f16 = to_float(to_f16(2048.0F + static_cast<float>(world().size() - 1)));
    for (const auto value : others) ASSERT_EQ(to_float(value), expected_f16);
  }
}

TEST(AllReduce, FindsTheMaximumAndTheMinimum) {
  std::vector<std::int64_t> values{world().rank(), -world().rank(), 5};
  auto largest = values;
  communicator().all_reduce({largest.data(), 3, DataType::i64}, "largest", {.op = ReduceOp::max})->wait();
  EXPECT_THAT(largest, ::testing::ElementsAre(world().size() - 1, 0, 5));
  auto smallest = values;
  communicator().all_reduce({smallest.data(), 3, DataType::i64}, "smallest", {.op = ReduceOp::min})->wait();
  EXPECT_THAT(smallest, ::testing::ElementsAre(0, 1 - world().size(), 5));
}

TEST(AllReduce, ReadsItsScaleAfterEarlierOperations) {
  std::int64_t total = world().rank() + 1;
  double scale = 0;
  std::vector<float> values(100'000, 1.0F);
  const auto first = communicator().all_reduce({&total, 1, DataType::i64}, "total",
                                               {.then = [&] { scale = 1.0 / static_cast<double>(total); }});
  const auto second =
      communicator().all_reduce({values.data(), values.size(), DataType::f32}, "values", {.scale = &scale});
  second->wait();
  EXPECT_TRUE(first->done());
  const auto ranks = static_cast<float>(world().size());
  EXPECT_THAT(values, Each(::testing::FloatEq(ranks / (ranks * (ranks + 1) / 2))));
}

TEST(AllReduce, RefusesAScaleOnIntegersByName) {
  const double scale = 0.5;
  std::int64_t value = 1;
  const auto work = communicator().all_reduce({&value, 1, DataType::i64}, "a count", {.scale = &scale});
  try {
    work->wait();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce of a count (8 bytes) failed on rank"));
  }
}

TEST(Broadcast, GivesAllRanksTheRootsElements) {
  for (int root = 0; root < world().size(); ++root) {
    std::vector<std::int32_t> values(10'000);
    if (world().rank() == root) std::iota(values.begin(), values.end(), root);
    communicator().broadcast({values.data(), values.size(), DataType::i32}, root, "values")->wait();
    EXPECT_EQ(values.front(), root);
    EXPECT_EQ(values.back(), root + 9'999);
  }
}

TEST(AllGather, PutsRanksInOrder) {
  const auto all = gather(std::vector<std::int32_t>{world().rank(), -world().rank()}, DataType::i32);
  for (int rank = 0; rank < world().size(); ++rank) {
    EXPECT_EQ(all[static_cast<std::size_t>(rank) * 2], rank);
    EXPECT_EQ(all[static_cast<std::size_t>(rank) * 2 + 1], -rank);
  }
}

TEST(AllGather, WorksInPlace) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world().size()), -1);
  auto& mine = all[static_cast<std::size_t>(world().rank())];
  mine = std::int64_t{10} * world().rank();
  communicator().all_gather({&mine, 1, DataType::i64}, all.data(), "parts in place")->wait();
  for (int rank = 0; rank < world().size(); ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], rank * 10);
}

TEST(ReduceScatter, GivesEveryRankItsPartOfTheAllReduce) {
  for (const std::size_t each : {1, 33, 70'000}) {
    SCOPED_TRACE(each);
    const auto ranks = static_cast<std::size_t>(world().size());
    std::vector<float> all(each * ranks);
    // Small integers, because with surplus nodes the order of summation differs.
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(world().rank()) * 31) % 1000);
    auto whole = all;
    communicator()
        .all_reduce({whole.data(), whole.size(), DataType::f32}, "whole", {.op = ReduceOp::average})
        ->wait();
    float* place = all.data() + each * static_cast<std::size_t>(world().rank());
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(each) * world().rank();
    std::vector<float> apart(each);
    communicator()
        .reduce_scatter(all.data(), {apart.data(), each, DataType::f32}, "apart", {.op = ReduceOp::average})
        ->wait();
    EXPECT_TRUE(std::equal(apart.begin(), apart.end(), begin));
    communicator()
        .reduce_scatter(all.data(), {place, each, DataType::f32}, "in place", {.op = ReduceOp::average})
        ->wait();
    EXPECT_TRUE(std::equal(place, place + each, begin));
  }
}

TEST(AllReduce, CombinesBitsByOr) {
  std::vector<std::uint8_t> bits(1000,
                                 static_cast<std::uint8_t>(1U << static_cast<unsigned>(world().rank())));
  communicator()
      .all_reduce({bits.data(), bits.size(), DataType::u8}, "bits", {.op = ReduceOp::bit_or})
      ->wait();
  EXPECT_THAT(bits, Each(static_cast<std::uint8_t>((1U << static_cast<unsigned>(world().size())) - 1)));
}

TEST(Split, MakesIndependentGroups) {
  const int color = world().rank() % 2;
  const auto group = communicator().split(color, "odd or even");
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->size(), (world().size() + 1 - color) / 2);
  EXPECT_EQ(group->rank(), world().rank() / 2);
  std::int64_t members = 1;
  group->all_reduce({&members, 1, DataType::i64}, "members")->wait();
  EXPECT_EQ(members, group->size());
}

TEST(Split, ReturnsNullForANegativeColor) {
  const auto group = communicator().split(world().rank() == 0 ? 0 : -1, "the first alone");
  EXPECT_EQ(group != nullptr, world().rank() == 0);
}

TEST(Split, RanksMayWaitInDifferentGroupsAtTheSameTime) {
  const auto group = communicator().split(0, "everyone again");
  const std::size_t each = 100'000;  // more than fits into a slot, so that ranks need each other's help
  std::vector<std::int32_t> mine(each, world().rank());
  std::vector<std::int32_t> all(each * static_cast<std::size_t>(world().size()));
  // Even ranks start the operation earlier than the others, so their share of the work comes later.
  if (world().rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto gathered = communicator().all_gather({mine.data(), each, DataType::i32}, all.data(), "all");
  if (world().rank() % 2 == 0) {
    group->barrier("in the group")->wait();
    gathered->wait();
  } else {
    gathered->wait();
    group->barrier("in the group")->wait();
  }
  EXPECT_EQ(all.back(), world().size() - 1);
}

TEST(Work, BecomesDoneWithoutACallOfWait) {
  std::vector<float> values(100'000, 1.0F);
  const auto work = communicator().broadcast({values.data(), values.size(), DataType::f32}, 0, "values");
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::vector<float> many(1'000'000, 1.0F);
  const auto sum = communicator().all_reduce({many.data(), many.size(), DataType::f32}, "many values");
  const auto all_done = [&] { return work->done() && sum->done(); };
  while (!all_done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(all_done());
}

TEST(AllReduce, WorksForALateRankWithoutASlice) {
  // If nodes have unequal numbers of ranks, a rank without a lane must not read memory that others have
  // freed.
  double scale = 0;
  for (int round = 0; round < 20; ++round) {
    std::int64_t one = 1;
    auto memory = communicator().allocate(400'000);
    auto* values = static_cast<float*>(memory.get());
    std::fill_n(values, 100'000, 1.0F);
    const auto count =
        communicator().all_reduce({&one, 1, DataType::i64}, "count", {.then = [&] {
                                    if (world().local_rank() > 0) {
                                      std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                    }
                                    scale = 1.0 / static_cast<double>(one);
                                  }});
    communicator().all_reduce({values, 100'000, DataType::f32}, "values", {.scale = &scale})->wait();
    EXPECT_TRUE(count->done());
    EXPECT_FLOAT_EQ(values[99'999], 1.0F);
  }
}

TEST(Communicator, RunsOperationsInTheOrderOfTheirStart) {
  std::vector<std::int64_t> values(50, 1);
  std::vector<WorkHandle> works;
  works.reserve(values.size());
  for (auto& value : values) works.push_back(communicator().all_reduce({&value, 1, DataType::i64}, "one"));
  communicator().barrier("the end")->wait();
  std::uint64_t ended_before = 0;
  for (const auto& work : works) {
    ASSERT_TRUE(work->done());
    EXPECT_LE(ended_before, work->times().ended_ns);
    EXPECT_LE(work->times().asked_ns, work->times().began_ns);
    ended_before = work->times().ended_ns;
  }
  EXPECT_THAT(values, Each(world().size()));
}

TEST(Communicator, KnowsWhichRankStartedLast) {
  if (communicator().name() != "shared memory")
    GTEST_SKIP() << "clocks of different nodes cannot be compared";
  const auto work = communicator().barrier("the last rank");
  work->wait();
  EXPECT_LE(work->times().asked_ns, work->times().all_asked_ns);
  EXPECT_GE(work->times().late_rank, 0);
  const auto ranks = gather(std::vector<std::int32_t>{work->times().late_rank}, DataType::i32);
  EXPECT_THAT(ranks, Each(ranks[0])) << "the same on all ranks";
  if (world().rank() == ranks[0]) {
    EXPECT_EQ(work->times().asked_ns, work->times().all_asked_ns);
  }
}

// Without the communicator's thread, the operation would never end: this rank only looks.
TEST(Network, AWaitThatFailsLeavesTheWorkToTheCommunicatorsThread) {
  if (world().nodes() == 1 || world().nodes() < world().size()) GTEST_SKIP() << "needs nodes of one rank";
  std::vector<float> values(1'000'000, 1);
  if (world().rank() != 0) MPI_Barrier(MPI_COMM_WORLD);  // rank 0 waits until its wait has failed
  const auto work = communicator().all_reduce({values.data(), values.size(), DataType::f32}, "values");
  if (world().rank() == 0) {
    testsome_fails = true;
    EXPECT_THROW(work->wait(), Error);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!work->done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  ASSERT_TRUE(work->done());
  EXPECT_THAT(values, Each(static_cast<float>(world().size())));
}

// The ranks share a clock here; each one says that its clock is ahead.
TEST(ClockOffset, IsWithinItsBounds) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t ahead = world().rank() * 10 * kSecond;
  const ClockOffset offset = measure_clock_offset(
      communicator(), [&] { return monotonic_ns() + static_cast<std::uint64_t>(ahead); });
  EXPECT_LE(offset.low, ahead);
  EXPECT_GE(offset.high, ahead);
  EXPECT_LT(offset.high - offset.low, 10 * kSecond) << "one of 16 all-gathers was faster than that";
}

TEST(World, IsProfiledFromTheProgram) {
  namespace fs = std::filesystem;
  profile::StepTimer& timer = world().timer();
  // The simulated nodes have one folder of records.
  const fs::path folder = timer.file().parent_path() / "report";
  EXPECT_THROW(world().start_profile("active:0"), UsageError);
  ::setenv("LOCKSTEP_REPORT_DIR", folder.c_str(), 1);
  world().start_profile("active:1");
  ::unsetenv("LOCKSTEP_REPORT_DIR");
  EXPECT_THROW(world().start_profile("active:1"), UsageError) << "twice";
  timer.begin_step();
  std::int32_t value = 1;
  communicator().all_reduce({&value, 1, DataType::i32}, "a traced value")->wait();
  timer.end_step({});
  communicator().barrier("all have written their traces")->wait();
  timer.end_step({});
  const std::string trace = read_text_file(folder / fmt::format("trace-{:06}.json", world().rank()));
  EXPECT_THAT(trace, HasSubstr(fmt::format("\"ranks\":{}}}", world().size())));
  EXPECT_THAT(trace, HasSubstr(fmt::format("\"rank {} on ", world().rank())));
  EXPECT_THAT(trace, HasSubstr("all_reduce of a traced value (4 bytes)"));
  EXPECT_THAT(trace, Not(HasSubstr("all have written")));
  communicator().barrier("all have read their traces")->wait();
  if (world().rank() == 0) fs::remove_all(folder);
}

TEST(World, KnowsItsRankAndNode) {
  EXPECT_LT(world().rank(), world().size());
  const auto nodes = gather(std::vector<std::int32_t>{world().node()}, DataType::i32);
  EXPECT_EQ(nodes.front(), 0) << "the node of rank 0 is the first";
  EXPECT_EQ(*std::max_element(nodes.begin(), nodes.end()), world().nodes() - 1);
  EXPECT_EQ(std::count(nodes.begin(), nodes.end(), world().node()), world().local_size());
  EXPECT_EQ(std::count(nodes.begin(), nodes.begin() + world().rank(), world().node()), world().local_rank());
  EXPECT_FALSE(world().node_name().empty());
}

}  // namespace
}  // namespace lockstep::comm
