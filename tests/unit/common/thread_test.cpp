#include "common/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Starts threads until the system refuses one. Prints the message, and whether the signals are as they were.
[[noreturn]] void start_too_many_with(void (*limit)()) {
  limit();
  sigset_t before;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::vector<std::thread> threads;
  try {
    for (;;) threads.push_back(start_thread([] { ::pause(); }));
  } catch (const SystemError& error) {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
    fmt::print(stderr, "{}; signals {}\n", error.what(),
               ::sigismember(&after, SIGTERM) == ::sigismember(&before, SIGTERM) ? "kept" : "blocked");
  }
  ::_exit(0);
}

void limit_memory_for_stacks() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20U);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

void limit_processes() {
  constexpr uid_t kUser = 61'234;  // root has no such limit
  if (::geteuid() == 0 && ::setresuid(kUser, kUser, kUser) != 0) ::_exit(1);
  const rlimit limit{1, 1};
  ::setrlimit(RLIMIT_NPROC, &limit);
}

TEST(Thread, ThatDoesNotFitIntoTheAddressSpaceNamesThatLimit) {
  EXPECT_EXIT(
      start_too_many_with(limit_memory_for_stacks), ::testing::ExitedWithCode(0),
      "cannot start a thread .Resource temporarily unavailable.: .* of address space .ulimit -v.*; signals kept");
}

TEST(Thread, BeyondTheUsersProcessesNamesThatLimit) {
  EXPECT_EXIT(start_too_many_with(limit_processes), ::testing::ExitedWithCode(0),
              "this user may run 1 processes and threads on this node .ulimit -u.*; signals kept");
}

TEST(Thread, BeyondTheProcessesOfTheJobNamesItsCgroup) {
  const testing::TemporaryFolder folder;
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((folder.path() / file).parent_path());
    write_file_atomically(folder.path() / file, text, 0600);
  };
  write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write("cgroup/slurm/job_7/step_0/pids.max", "max\n");
  write("cgroup/slurm/job_7/step_0/pids.current", "60\n");
  write("cgroup/slurm/job_7/pids.max", "64\n");
  write("cgroup/slurm/job_7/pids.current", "64\n");
  EXPECT_THAT(
      message_of([&] { fail_thread(EAGAIN, folder.path() / "proc", folder.path() / "cgroup"); }),
      AllOf(HasSubstr("slurm/job_7 has its 64 processes and threads (pids.max)"), HasSubstr("TasksMax")));
}

}  // namespace
}  // namespace lockstep
