#include "runtime/data/ordered_prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "common/error.h"

namespace lockstep::data {
namespace {

TEST(OrderedPrefetch, HandsOutInOrderWhateverTheThreads) {
  for (const int threads : {1, 2, 5}) {
    for (const std::size_t ahead : {1U, 3U, 64U}) {
      OrderedPrefetch<std::string> prefetch(50, {threads, ahead, {}},
                                            [](std::size_t i) { return std::to_string(i); });
      for (std::size_t i = 0; i < 50; ++i) ASSERT_EQ(prefetch.next(), std::to_string(i));
      EXPECT_FALSE(prefetch.next().has_value());
      EXPECT_FALSE(prefetch.next().has_value());
    }
  }
}

TEST(OrderedPrefetch, NothingToBuildIsOverAtOnce) {
  OrderedPrefetch<int> prefetch(0, {2, 4, {}}, [](std::size_t) { return 1; });
  EXPECT_FALSE(prefetch.next().has_value());
}

TEST(OrderedPrefetch, BuildsNoFurtherAheadThanItMay) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t built = 0;
  std::atomic<std::size_t> furthest{0};
  std::atomic<std::size_t> taken{0};
  std::atomic<bool> too_far{false};
  OrderedPrefetch<int> prefetch(100, {3, 4, {}}, [&](std::size_t i) {
    if (i >= taken + 4 + 1) too_far = true;  // `taken` is raised after the taking: one behind at most
    const std::lock_guard lock(mutex);
    furthest = std::max(furthest.load(), i);
    ++built;
    changed.notify_all();
    return 0;
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return built == 4; });
  lock.unlock();
  EXPECT_EQ(furthest, 3U);
  for (std::size_t i = 0; i < 100; ++i) {
    prefetch.next();
    ++taken;
  }
  EXPECT_FALSE(too_far);
}

TEST(OrderedPrefetch, AFailureComesWhereTheThingWouldHaveCome) {
  OrderedPrefetch<int> prefetch(10, {2, 8, {}}, [](std::size_t i) {
    if (i == 3) throw Error("thing 3");
    return static_cast<int>(i);
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetch.next(), i);
  EXPECT_THROW(prefetch.next(), Error);
  EXPECT_THROW(prefetch.next(), Error);
}

TEST(OrderedPrefetch, LeavingEarlyEndsTheThreads) {
  std::atomic<int> building{0};
  {
    OrderedPrefetch<int> prefetch(1000000, {4, 4, {}}, [&](std::size_t i) {
      ++building;
      const int result = static_cast<int>(i);
      --building;
      return result;
    });
    EXPECT_EQ(prefetch.next(), 0);
  }
  EXPECT_EQ(building, 0);
}

TEST(OrderedPrefetch, RunsOnTheGivenCpus) {
  const int cpu = cpus_of_this_thread().back();
  OrderedPrefetch<std::vector<int>> prefetch(1, {1, 1, {cpu}},
                                             [](std::size_t) { return cpus_of_this_thread(); });
  EXPECT_EQ(prefetch.next(), std::vector<int>{cpu});
}

TEST(OrderedPrefetch, CpusThatDoNotExistAreAnErrorAndNotAHang) {
  OrderedPrefetch<int> prefetch(1, {1, 1, {1023}}, [](std::size_t) { return 0; });
  EXPECT_THROW(prefetch.next(), Error);
}

}  // namespace
}  // namespace lockstep::data
