// Many operations of all kinds at the same time, on memory of all kinds, started and waited for at random
// times: a test of the queue, the ring of slots and shared memory.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

#include "tests/integration/mpi_world.h"

namespace lockstep::comm {
namespace {

using testing::world;

/// A running operation and its memory; `check` returns the number of wrong elements.
struct Running {
  WorkHandle work;
  std::function<std::size_t()> check;
};

std::int32_t value_of(std::size_t round, int rank, std::size_t i) {
  return static_cast<std::int32_t>(round * 7 + static_cast<std::size_t>(rank) * 13 + i % 1001);
}

std::int32_t sum_of(std::size_t round, std::size_t i) {
  std::int32_t sum = 0;
  for (int rank = 0; rank < world().size(); ++rank) sum += value_of(round, rank, i);
  return sum;
}

// Allocates elements, in shared memory if `registered`.
std::shared_ptr<std::int32_t> memory(std::size_t count, bool registered) {
  if (!registered) return {new std::int32_t[count], std::default_delete<std::int32_t[]>()};
  const auto shared = world().communicator().allocate(count * sizeof(std::int32_t));
  return {shared, static_cast<std::int32_t*>(shared.get())};
}

std::size_t differing(const std::int32_t* values, std::size_t count, const auto& expected) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += values[i] == expected(i) ? 0 : 1;
  return wrong;
}

Running start(std::size_t round, int kind, std::size_t count, bool registered) {
  Communicator& communicator = world().communicator();
  const auto ranks = static_cast<std::size_t>(world().size());
  const auto me = static_cast<std::size_t>(world().rank());
  const auto mine = memory(count, registered);
  for (std::size_t i = 0; i < count; ++i) mine.get()[i] = value_of(round, world().rank(), i);
  const Buffer buffer{mine.get(), count, DataType::i32};
  switch (kind) {
    case 0:
      return {communicator.all_reduce(buffer, "sum"),
              [=] { return differing(mine.get(), count, [=](std::size_t i) { return sum_of(round, i); }); }};
    case 1: {
      const int root = static_cast<int>(round % ranks);
      return {communicator.broadcast(buffer, root, "root's"), [=] {
                return differing(mine.get(), count, [=](std::size_t i) { return value_of(round, root, i); });
              }};
    }
    case 2: {
      const auto all = memory(count * ranks, registered);
      return {communicator.all_gather(buffer, all.get(), "all"), [=] {
                static_cast<void>(mine);
                return differing(all.get(), count * ranks, [=](std::size_t i) {
                  return value_of(round, static_cast<int>(i / count), i % count);
                });
              }};
    }
    default: {
      const auto all = memory(count * ranks, registered);
      for (std::size_t i = 0; i < count * ranks; ++i) all.get()[i] = value_of(round, world().rank(), i);
      return {communicator.reduce_scatter(all.get(), buffer, "part"), [=] {
                static_cast<void>(all);
                return differing(mine.get(), count,
                                 [=](std::size_t i) { return sum_of(round, me * count + i); });
              }};
    }
  }
}

TEST(ManyOperations, GiveCorrectResultsWithRandomTiming) {
  std::mt19937 same(1);                                           // the same numbers on all ranks
  std::mt19937 own(static_cast<unsigned>(100 + world().rank()));  // different numbers on each rank
  std::deque<Running> running;
  std::size_t wrong = 0;
  const auto finish = [&] {
    running.front().work->wait();
    wrong += running.front().check();
    running.pop_front();
  };
  for (std::size_t round = 0; round < 600; ++round) {
    const int kind = static_cast<int>(same() % 4);
    std::size_t count = same() % 3 == 0 ? 1 + same() % 100'000 : 1 + same() % 1500;
    if (kind == 0 && round % 20 == 0) count *= 10;
    running.push_back(start(round, kind, count, own() % 2 == 0));
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (own() % 4 == 0) world().communicator().progress();
    while (running.size() > own() % 150) finish();  // sometimes more than the ring has slots
  }
  while (!running.empty()) finish();
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace lockstep::comm
