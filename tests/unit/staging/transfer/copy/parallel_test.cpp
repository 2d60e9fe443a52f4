#include "staging/transfer/copy/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace lockstep::transfer {
namespace {

// The stacks of a few threads fit, those of all threads do not.
void limit_memory_for_stacks() {
  rlimit stack{};
  ::getrlimit(RLIMIT_STACK, &stack);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  constexpr rlim_t kStack = rlim_t{8} << 20U;
  stack.rlim_cur = kStack;
  ::setrlimit(RLIMIT_STACK, &stack);
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + 4 * kStack;
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST(ParallelFor, AThreadThatCannotStartDoesNotLeaveTheOthersWaiting) {
  EXPECT_EXIT(
      {
        limit_memory_for_stacks();
        std::atomic<bool> ended = false;
        try {
          parallel_for(
              32, 32,
              [&](std::size_t) {
                while (!ended) ::usleep(1000);
              },
              [&] { ended = true; });
        } catch (const std::exception& error) {
          std::fputs(error.what(), stderr);
          ::_exit(ended ? 0 : 1);
        }
        ::_exit(2);
      },
      ::testing::ExitedWithCode(0), "cannot start a thread .*ulimit -v");
}

TEST(ParallelFor, ThrowsTheFirstErrorAgain) {
  EXPECT_THROW(parallel_for(4, 2,
                            [](std::size_t i) {
                              if (i == 2) throw std::runtime_error("two");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep::transfer
