#include "common/ordered_prefetch.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <new>
#include <string>

#include "common/error.h"

namespace lockstep {
namespace {

// Claims 0, 1, … up to a number.
std::function<std::optional<std::size_t>()> up_to(std::size_t count, std::size_t begin = 0) {
  return [count, next = begin]() mutable { return next < count ? std::optional(next++) : std::nullopt; };
}

template <typename T>
using Prefetch = OrderedPrefetch<std::size_t, T>;

TEST(OrderedPrefetch, ReturnsItemsInOrderForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    for (const std::size_t ahead : {1U, 3U, 64U}) {
      Prefetch<std::string> prefetch({threads, ahead, {}}, up_to(50),
                                     [](std::size_t i, int) { return std::to_string(i); });
      for (std::size_t i = 0; i < 50; ++i) ASSERT_EQ(prefetch.next(), std::to_string(i));
      EXPECT_FALSE(prefetch.next().has_value());
      EXPECT_FALSE(prefetch.next().has_value());
    }
  }
}

TEST(OrderedPrefetch, EndsAtOnceIfThereIsNothingToBuild) {
  Prefetch<int> prefetch({2, 4, {}}, up_to(0), [](std::size_t, int) { return 1; });
  EXPECT_FALSE(prefetch.next().has_value());
}

TEST(OrderedPrefetch, BuildsAtMostTheAllowedNumberAhead) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t built = 0;
  std::atomic<std::size_t> furthest{0};
  std::atomic<std::size_t> taken{0};
  std::atomic<bool> too_far{false};
  Prefetch<int> prefetch({3, 4, {}}, up_to(100), [&](std::size_t i, int) {
    if (i >= taken + 4 + 1) too_far = true;  // `taken` is incremented late, by at most one
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

TEST(OrderedPrefetch, AFailureIsThrownInPlaceOfTheItem) {
  Prefetch<int> prefetch({2, 8, {}}, up_to(10), [](std::size_t i, int) {
    if (i == 3) throw Error("item 3");
    return static_cast<int>(i);
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetch.next(), i);
  EXPECT_THROW(prefetch.next(), Error);
  EXPECT_THROW(prefetch.next(), Error);
}

TEST(OrderedPrefetch, LeavingEarlyEndsTheThreads) {
  std::atomic<int> building{0};
  {
    Prefetch<int> prefetch({4, 4, {}}, up_to(1'000'000), [&](std::size_t i, int) {
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
  Prefetch<std::vector<int>> prefetch({1, 1, {cpu}}, up_to(1),
                                      [](std::size_t, int) { return cpus_of_this_thread(); });
  EXPECT_EQ(prefetch.next(), std::vector<int>{cpu});
}

TEST(OrderedPrefetch, MissingCpusAreAnErrorAndNotAHang) {
  Prefetch<int> prefetch({1, 1, {1023}}, up_to(1), [](std::size_t, int) { return 0; });
  EXPECT_THROW(prefetch.next(), Error);
}

TEST(OrderedPrefetch, AFailedClaimIsThrownInPlaceOfTheItem) {
  Prefetch<int> prefetch(
      {2, 4, {}},
      [next = std::size_t{0}]() mutable -> std::optional<std::size_t> {
        if (next == 3) throw Error("no plan");
        return next++;
      },
      [](std::size_t i, int) { return static_cast<int>(i); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetch.next(), i);
  EXPECT_THROW(prefetch.next(), Error);
}

TEST(OrderedPrefetch, AfterARestartItReturnsNoEarlierItem) {
  std::function<std::optional<std::size_t>()> claim = up_to(1'000'000);
  Prefetch<std::size_t> prefetch(
      {3, 5, {}}, [&] { return claim(); }, [](std::size_t i, int) { return i; });
  for (std::size_t round = 1; round < 200; ++round) {
    const std::size_t begin = round * 1000;
    prefetch.restart([&] { claim = up_to(begin + 3, begin); });
    for (std::size_t i = 0; i < round % 4; ++i) ASSERT_EQ(prefetch.next(), begin + i);
  }
  prefetch.restart([&] { claim = up_to(2); });
  EXPECT_EQ(prefetch.next(), 0U);
  EXPECT_EQ(prefetch.next(), 1U);
  EXPECT_FALSE(prefetch.next().has_value());
}

TEST(OrderedPrefetch, SaysWhetherTheNextItemIsReady) {
  std::mutex hold;
  std::unique_lock held(hold);
  Prefetch<int> prefetch({1, 2, {}}, up_to(1), [&](std::size_t, int) {
    const std::lock_guard lock(hold);
    return 7;
  });
  bool ready = true;
  EXPECT_FALSE(prefetch.next_if_ready(ready).has_value());
  EXPECT_FALSE(ready);
  held.unlock();
  std::optional<int> item;
  while (!ready) item = prefetch.next_if_ready(ready);
  EXPECT_EQ(item, 7);
}

TEST(OrderedPrefetch, AThreadThatItsCodeEndsIsAnErrorAndNotAHang) {
  Prefetch<int> prefetch({1, 2, {}}, up_to(5), [](std::size_t i, int) {
    if (i == 1) pthread_exit(nullptr);
    return static_cast<int>(i);
  });
  EXPECT_EQ(prefetch.next(), 0);
  EXPECT_THROW(prefetch.next(), Error);
  EXPECT_THROW(prefetch.next(), Error);
}

TEST(OrderedPrefetch, TheErrorOfAnEndedThreadSaysWhereItEnded) {
  Prefetch<int> prefetch({1, 2, {}}, up_to(5), [](std::size_t i, int) {
    try {
      if (i == 1) pthread_exit(nullptr);
    } catch (abi::__forced_unwind&) {
      place_of_thread_end() = ": number 1";
      throw;
    }
    return static_cast<int>(i);
  });
  EXPECT_EQ(prefetch.next(), 0);
  EXPECT_THAT([&] { prefetch.next(); },
              testing::ThrowsMessage<Error>(testing::EndsWith("was ended by the code in it: number 1")));
}

// Each thread gets a copy of a large list of CPUs, so there is no memory for the copy of the second thread.
TEST(OrderedPrefetch, EndsItsThreadsIfMemoryForAThreadIsMissing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
#endif
  constexpr std::size_t kBytes = std::size_t{256} << 20U;
  const PrefetchOptions options{4, 2, std::vector<int>(kBytes / sizeof(int))};
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit less = before;
  less.rlim_cur = pages * static_cast<std::size_t>(::getpagesize()) + kBytes * 7 / 4;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &less), 0);
  EXPECT_THROW(Prefetch<int>(options, up_to(0), [](std::size_t, int) { return 1; }), std::bad_alloc);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace lockstep
