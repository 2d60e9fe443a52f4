#include "plugin/spank/process/node_tasks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "common/leaf/cpu_list.h"

namespace lockstep::spank {
namespace {

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

TEST(NodeTasks, WorkRunsOnceAndAllTasksGetItsResult) {
  NodeTasks tasks(8);
  std::atomic<int>& calls = shared_counter();
  const std::vector<int> codes = in_tasks(8, [&](int task) {
    tasks.record_gpus(static_cast<std::uint32_t>(task), std::to_string(task % 2));
    tasks.record_cpus(static_cast<std::uint32_t>(task), {task});
    const WorkResult result = tasks.run_once([&] {
      ++calls;
      if (format_cpu_list(tasks.wait_for_cpus(10)) != "0-7") return WorkResult::failed;
      if (tasks.all_gpus() != std::vector<std::string>{"0", "1", "0", "1", "0", "1", "0", "1"})
        return WorkResult::failed;
      tasks.set_placements(std::vector<TaskPlacement>(8, {"1,3", "5", "0", "0000:07:00.0", 2, "{1},{3}"}));
      return WorkResult::succeeded;
    });
    const TaskPlacement place = tasks.placement(static_cast<std::uint32_t>(task));
    return result == WorkResult::succeeded && place.cpus == "1,3" && place.workers == "5" &&
                   place.numa == "0" && place.gpus == "0000:07:00.0" && place.threads == 2 &&
                   place.places == "{1},{3}"
               ? 0
               : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(8, 0));
  EXPECT_EQ(calls, 1);
}

TEST(NodeTasks, AllTasksGetAFailure) {
  NodeTasks tasks(4);
  const std::vector<int> codes = in_tasks(4, [&](int) {
    return tasks.run_once([] { return WorkResult::failed; }) == WorkResult::failed ? 3 : 0;
  });
  EXPECT_EQ(codes, std::vector<int>(4, 3));
}

TEST(NodeTasks, TheOtherTasksLearnThatTheWorkerWasKilled) {
  NodeTasks tasks(4);
  const std::vector<int> codes = in_tasks(4, [&](int) {
    const WorkResult result = tasks.run_once([] {
      ::raise(SIGKILL);
      return WorkResult::succeeded;
    });
    return result == WorkResult::killed ? 3 : 0;
  });
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 128 + SIGKILL), 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 3), 3);
}

TEST(NodeTasks, TheWaitForATaskThatNeverComesEnds) {
  NodeTasks tasks(2);
  tasks.record_cpus(0, {0});
  EXPECT_EQ(tasks.wait_for_cpus(0), std::vector<int>{});
  tasks.record_cpus(1, {4});
  EXPECT_EQ(tasks.wait_for_cpus(0), (std::vector<int>{0, 4}));
}

TEST(NodeTasks, TasksOutOfRangeAndTooLongListsAreIgnored) {
  NodeTasks tasks(1);
  tasks.record_cpus(7, {0});
  EXPECT_EQ(tasks.placement(7).cpus, "");
  tasks.set_placements({{std::string(5000, '1'), "", "", "", 1, ""}, {"1", "", "", "", 1, ""}});
  EXPECT_EQ(tasks.placement(0).cpus, "");
}

}  // namespace
}  // namespace lockstep::spank
