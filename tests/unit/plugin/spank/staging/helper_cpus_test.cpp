#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/leaf/cpu_list.h"
#include "plugin/spank/staging/staging.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::spank {
namespace {

std::string spare(const char* step, const char* of_tasks, const char* computing) {
  return format_cpu_list(
      spare_cpus(parse_cpu_list(step), parse_cpu_list(of_tasks), parse_cpu_list(computing)));
}

TEST(HelperCpus, AreThoseOnWhichNoTaskComputesOrElseAll) {
  EXPECT_EQ(spare("0-7", "0-3,6", "0-3"), "4-5,7") << "CPUs without a task";
  EXPECT_EQ(spare("0-7", "0-7", "0-2,4-6"), "3,7") << "the loaders' CPUs";
  EXPECT_EQ(spare("0-7", "0-7", "0-7"), "0-7");
}

TEST(HelperCpus, FindingTheStepsCpusKeepsTheTasksMask) {
  const std::vector<int> before = cpus_of_this_thread();
  bind_this_thread({before.front()});
  const std::vector<int> whole = step_cpus(static_cast<std::uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::vector<int> after = cpus_of_this_thread();
  bind_this_thread(before);
  EXPECT_GE(whole.size(), before.size());
  EXPECT_EQ(after, std::vector<int>{before.front()});
}

TEST(HelperCpus, AreUnknownForAnUnconfinedStepWithPartOfTheNode) {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (online < 2) GTEST_SKIP() << "needs two CPUs";
  if (static_cast<long>(cpus_of_this_thread().size()) < online)
    GTEST_SKIP() << "this test itself is confined";
  EXPECT_TRUE(step_cpus(1).empty());
}

// Slurm may count cores where a core has several CPUs, so the number alone does not tell that a step has the whole node.
TEST(HelperCpus, AreAllWhereSlurmConfinesAStepToTheWholeNode) {
  const std::size_t online = static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (online < 2 || cpus_of_this_thread().size() < online)
    GTEST_SKIP() << "needs two CPUs, and all of the machine";
  const lockstep::testing::TemporaryFolder folder;
  const std::string groups = folder / "cgroup";
  const auto cpus = [&](const std::string& line) {
    std::ofstream(groups) << "1:name=systemd:/\n" << line << "\n";
    return step_cpus(1, groups, folder.path().string()).size();
  };
  EXPECT_EQ(cpus("3:cpuset:/slurm/uid_0/job_1/step_0"), online);
  EXPECT_EQ(cpus("3:cpu,cpuset:/slurm_n1/uid_0/job_1/step_0/task_0"), online);
  EXPECT_EQ(cpus("3:memory:/slurm/uid_0/job_1/step_0"), 0U);
  EXPECT_EQ(cpus("3:cpuset:/"), 0U);
  const std::string step = "/system.slice/slurmstepd.scope/job_1/step_0";
  std::filesystem::create_directories(folder.path().string() + step + "/user/task_0");
  EXPECT_EQ(cpus("0::" + step + "/user/task_0"), 0U);
  std::ofstream(folder.path().string() + step + "/cpuset.cpus") << "\n";
  EXPECT_EQ(cpus("0::" + step + "/user/task_0"), 0U);
  std::ofstream(folder.path().string() + step + "/cpuset.cpus") << "0-1\n";
  EXPECT_EQ(cpus("0::" + step + "/user/task_0"), online);
}

}  // namespace
}  // namespace lockstep::spank
