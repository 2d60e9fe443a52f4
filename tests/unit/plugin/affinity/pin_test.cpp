// The program lockstep-pin: formats, exit codes, and a command that runs on its planned CPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"
#include "common/process.h"

namespace lockstep::affinity {
namespace {

using testing::HasSubstr;

ProcessResult pin(std::vector<std::string> words) {
  words.insert(words.begin(), LOCKSTEP_PIN);
  return run_process(words);
}

// A variable for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(PinPlan, PrintsTheFixedJson) {
  const ProcessResult result =
      pin({"plan", "--topology", "numa:2 core:4 pu:2", "--tasks", "2", "--workers", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_TRUE(json.contains("topology"));
  EXPECT_EQ(json.size(), 2U);
  const auto& task = json.at("tasks").at(1);
  EXPECT_EQ(task.size(), 7U);
  EXPECT_EQ(task.at("task"), 1);
  EXPECT_EQ(task.at("cpus"), "8-13");
  EXPECT_EQ(task.at("worker_cpus"), "14-15");
  EXPECT_EQ(task.at("numa"), nlohmann::json::array({1}));
  EXPECT_EQ(task.at("gpus"), nlohmann::json::array());
  EXPECT_EQ(task.at("threads"), 6);
  EXPECT_EQ(task.at("why"), "NUMA node 1; 4 cores of 8");
}

TEST(PinPlan, AWrongCallEndsWithCodeTwoAndNamesTheMistake) {
  const auto call = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--topology", "core:4 pu:1"});
    const ProcessResult result = pin(more);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.output, "");
    return result.error;
  };
  EXPECT_THAT(call({"--tasks", "0"}), HasSubstr("0 tasks"));
  EXPECT_THAT(call({}), HasSubstr("--tasks"));
  EXPECT_THAT(call({"--tasks", "1", "--restrict", "3-9"}),
              HasSubstr("CPUs 4-9 are not in topology 'core:4 pu:1'"));
  EXPECT_THAT(call({"--tasks", "1", "--restrict", "1-x"}), HasSubstr("'x' is not a CPU number"));
  EXPECT_THAT(call({"--tasks", "1", "--policy", "best"}), HasSubstr("auto, numa, cache, core, off"));
  EXPECT_THAT(call({"--tasks", "1", "--mem", "best"}), HasSubstr("local, interleave, off"));
  EXPECT_THAT(call({"--tasks", "1", "--gpus", "0"}), HasSubstr("GPU '0' is not in topology"));
}

TEST(PinPlan, PlansForThisMachineWithinTheProcessesMask) {
  const int only = cpus_of_this_thread().back();
  const std::vector<int> before = cpus_of_this_thread();
  bind_this_thread({only});
  const ProcessResult result = pin({"plan", "--tasks", "1", "--json"});
  bind_this_thread(before);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output).at("tasks").at(0).at("cpus"), std::to_string(only));
}

TEST(PinPlan, DrawsACellForEveryCpu) {
  const auto file =
      std::filesystem::temp_directory_path() / ("lockstep-pin-" + std::to_string(::getpid()) + ".svg");
  const ProcessResult result =
      pin({"plan", "--topology", "numa:2 core:4 pu:2", "--tasks", "2", "--svg", file});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const std::string svg = read_text_file(file);
  std::filesystem::remove(file);
  EXPECT_THAT(svg, HasSubstr("<title>CPU 0: task 0</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>CPU 15: task 1</title>"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(PinRun, TheCommandSeesItsCpusAndVariables) {
  const std::vector<int> all = cpus_of_this_thread();
  const ProcessResult result =
      pin({"run", "--tasks", "1", "--", "sh", "-c",
           "grep Cpus_allowed_list /proc/self/status; echo $LOCKSTEP_CPUS $OMP_NUM_THREADS $OMP_PROC_BIND"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const std::string list = format_cpu_list(all);
  EXPECT_EQ(result.output,
            "Cpus_allowed_list:\t" + list + "\n" + list + " " + std::to_string(all.size()) + " close\n");
}

TEST(PinRun, RanksOfOneNodeGetDifferentCpus) {
  if (cpus_of_this_thread().size() < 2) GTEST_SKIP() << "needs two CPUs";
  std::string lists[2];
  for (const char* rank : {"0", "1"}) {
    const Variable rank_variable("OMPI_COMM_WORLD_LOCAL_RANK", rank);
    const Variable size_variable("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    const ProcessResult result = pin({"run", "--", "sh", "-c", "echo $LOCKSTEP_CPUS"});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    lists[*rank - '0'] = result.output;
  }
  EXPECT_NE(lists[0], lists[1]);
}

TEST(PinRun, TheUsersThreadCountStays) {
  const Variable threads("OMP_NUM_THREADS", "7");
  EXPECT_EQ(pin({"run", "--", "sh", "-c", "echo $OMP_NUM_THREADS"}).output, "7\n");
}

TEST(PinRun, FailuresNameTheCommandOrOption) {
  const ProcessResult missing = pin({"run", "--", "/no/such/program"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.error, HasSubstr("cannot run /no/such/program: No such file or directory"));
  const ProcessResult rank = pin({"run", "--tasks", "2", "--local-rank", "2", "--", "true"});
  EXPECT_EQ(rank.exit_code, 2);
  EXPECT_THAT(rank.error, HasSubstr("local rank 2 is not one of 2 tasks"));
}

// The oracle is the kernel's numa_maps: each line has the policy of a mapping.
TEST(PinRun, SetsTheMemoryPolicyOfTheCommand) {
  if (!std::filesystem::exists("/proc/self/numa_maps")) GTEST_SKIP() << "the kernel has no memory policies";
  const auto policies = [](const std::string& memory) {
    return pin({"run", "--tasks", "1", "--mem", memory, "--", "cut", "-d", " ", "-f", "2",
                "/proc/self/numa_maps"})
        .output;
  };
  EXPECT_THAT(policies("interleave"), HasSubstr("interleave"));
  EXPECT_THAT(policies("local"), testing::Not(HasSubstr("interleave")));
}

TEST(Launcher, ReadsSlurmsTaskCounts) {
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_THROW(tasks_on_node("2(x3),1", 4), UsageError);
  EXPECT_THROW(tasks_on_node("two", 0), UsageError);
}

TEST(Launcher, ATaskThatSlurmHasBoundKeepsItsCpus) {
  const Variable rank("SLURM_LOCALID", "1");
  const Variable counts("SLURM_STEP_TASKS_PER_NODE", "4");
  EXPECT_EQ(find_local_rank()->rank, 1);
  EXPECT_EQ(find_local_rank()->size, 4);
  const Variable bound("SLURM_CPU_BIND_LIST", "0x1,0x2,0x4,0x8");
  EXPECT_EQ(find_local_rank()->rank, 0);
  EXPECT_EQ(find_local_rank()->size, 1);
}

TEST(Launcher, TasksToWhichSlurmGaveTheSameMaskShareItsCpus) {
  const Variable rank("SLURM_LOCALID", "3");
  const Variable counts("SLURM_STEP_TASKS_PER_NODE", "4");
  for (const char* const all : {"0xF", "0xF,0xF,0xF,0xF", "0xF*4"}) {
    const Variable bound("SLURM_CPU_BIND_LIST", all);
    EXPECT_EQ(find_local_rank()->rank, 3) << all;
    EXPECT_EQ(find_local_rank()->size, 4) << all;
  }
  for (const char* const pairs : {"0x3,0xC", "0x3,0xC,0x3,0xC"}) {
    const Variable bound("SLURM_CPU_BIND_LIST", pairs);
    EXPECT_EQ(find_local_rank()->rank, 1) << pairs;
    EXPECT_EQ(find_local_rank()->size, 2) << pairs;
  }
}

TEST(Launcher, ARankThatIsNotBelowTheSizeIsRefused) {
  const Variable rank("LOCAL_RANK", "2");
  const Variable size("LOCAL_WORLD_SIZE", "2");
  EXPECT_THROW(find_local_rank(), UsageError);
}

}  // namespace
}  // namespace lockstep::affinity
