#include "plugin/spank/node_tasks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

cpu_set_t cpus(const std::string& list) {
  return parse_cpus(list);
}

// Runs `work(task)` in as many children as there are tasks; returns their exit codes.
std::vector<int> in_tasks(int tasks, const std::function<int(int)>& work) {
  std::vector<pid_t> children;
  for (int task = 0; task < tasks; ++task) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work(task));
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

// A counter that all tasks see.
std::atomic<int>& shared_counter() {
  void* const memory =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) std::atomic<int>(0);
}

TEST(NodeTasks, TheWorkIsDoneOnceAndAllSeeItsOutcome) {
  NodeTasks tasks(8);
  std::atomic<int>& calls = shared_counter();
  const std::vector<int> codes = in_tasks(8, [&](int task) {
    tasks.note_gpus(static_cast<std::uint32_t>(task), std::to_string(task % 2));
    tasks.note_cpus(static_cast<std::uint32_t>(task), cpus(std::to_string(task)));
    const Ended ended = tasks.once([&] {
      ++calls;
      if (tasks.all_cpus(10) != "0-7") return Ended::badly;
      if (tasks.all_gpus() != std::vector<std::string>{"0", "1", "0", "1", "0", "1", "0", "1"})
        return Ended::badly;
      tasks.put_placements(std::vector<Placement>(8, {"1,3", "5", "0", "0000:07:00.0", 2}));
      return Ended::well;
    });
    const Placement place = tasks.placement(static_cast<std::uint32_t>(task));
    return ended == Ended::well && place.cpus == "1,3" && place.workers == "5" && place.numa == "0" &&
                   place.gpus == "0000:07:00.0" && place.threads == 2
               ? 0
               : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(8, 0));
  EXPECT_EQ(calls, 1);
}

TEST(NodeTasks, AFailureEndsAllTasksAlike) {
  NodeTasks tasks(4);
  const std::vector<int> codes =
      in_tasks(4, [&](int) { return tasks.once([] { return Ended::badly; }) == Ended::badly ? 3 : 0; });
  EXPECT_EQ(codes, std::vector<int>(4, 3));
}

TEST(NodeTasks, TheOthersLearnThatTheWorkerWasKilled) {
  NodeTasks tasks(4);
  const std::vector<int> codes = in_tasks(4, [&](int) {
    const Ended ended = tasks.once([] {
      ::raise(SIGKILL);
      return Ended::well;
    });
    return ended == Ended::killed ? 3 : 0;
  });
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 128 + SIGKILL), 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 3), 3);
}

TEST(NodeTasks, ATaskThatNeverComesIsWaitedForOnlySoLong) {
  NodeTasks tasks(2);
  tasks.note_cpus(0, cpus("0"));
  EXPECT_EQ(tasks.all_cpus(0), "");
  tasks.note_cpus(1, cpus("4"));
  EXPECT_EQ(tasks.all_cpus(0), "0,4");
}

TEST(NodeTasks, TasksOutOfRangeAndListsTooLongAreLeftOut) {
  NodeTasks tasks(1);
  tasks.note_cpus(7, cpus("0"));
  EXPECT_EQ(tasks.placement(7).cpus, "");
  tasks.put_placements({{std::string(5000, '1'), "", "", "", 1}, {"1", "", "", "", 1}});
  EXPECT_EQ(tasks.placement(0).cpus, "");
}

TEST(CpuLists, AreReadAndWritten) {
  for (const char* list : {"", "0", "0-3", "0-3,8", "1,3,5-7,1000-1023"}) {
    EXPECT_EQ(format_cpus(parse_cpus(list)), list);
  }
  for (const char* list : {",", "0,", "a", "1-", "-1", "1-2-3", "1024", "0 1", "99999999999"}) {
    EXPECT_THROW(parse_cpus(list), Refusal) << list;
  }
}

}  // namespace
}  // namespace lockstep::spank
