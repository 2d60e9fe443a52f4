// The folders are made up: a process may not make cgroups everywhere.
#include "common/job_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep {
namespace {

class JobLimitsTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const auto path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    write_file_atomically(path, text, 0600);
  }
  MemoryLimit look() const { return available_memory(folder_.path() / "proc", folder_.path() / "cgroup"); }
  JobLimits limits() const { return job_limits(folder_.path() / "proc", folder_.path() / "cgroup"); }

  testing::TemporaryFolder folder_;
};

TEST_F(JobLimitsTest, AvailableOnAMachineWithoutCgroupsIsItsFreeMemory) {
  write("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:       4000 kB\n");
  EXPECT_EQ(look().available, 4000U << 10U);
  EXPECT_EQ(look().of, "this node");
}

TEST_F(JobLimitsTest, AvailableToAJobIsTheLowestOfAllGroupsAboveIt) {
  write("proc/meminfo", "MemAvailable: 4000000 kB\n");
  write("proc/self/cgroup", "0::/slurm/job_7/step_0/task_1\n");
  write("cgroup/slurm/job_7/step_0/task_1/memory.max", "max\n");
  write("cgroup/slurm/job_7/step_0/task_1/memory.current", "500000\n");
  write("cgroup/slurm/job_7/memory.max", "1000000\n");
  write("cgroup/slurm/job_7/memory.current", "900000\n");
  write("cgroup/slurm/job_7/memory.stat",
        "anon 500000\nfile 400000\ninactive_file 200000\nactive_file 50000\n");
  write("cgroup/slurm/memory.max", "9000000\n");
  write("cgroup/slurm/memory.current", "2000000\n");
  EXPECT_EQ(look().available, 1'000'000U - (900'000U - 250'000U)) << "file caches can be given up";
  EXPECT_THAT(look().of, ::testing::HasSubstr("slurm/job_7 (memory.max is 977 KiB)"));
}

TEST_F(JobLimitsTest, AvailableToAJobIsFoundInTheOlderCgroupsToo) {
  write("proc/meminfo", "MemAvailable: 4000000 kB\n");
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/slurm/job_7\n0::/\n");
  write("cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1000000\n");
  write("cgroup/memory/slurm/job_7/memory.usage_in_bytes", "1500000\n");
  EXPECT_EQ(look().available, 0U);
}

TEST_F(JobLimitsTest, WithoutCgroupsTheLimitIsTheNodesMemory) {
  write("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:       4000 kB\n");
  EXPECT_EQ(limits().memory_bytes, 8000U << 10U);
  EXPECT_EQ(limits().memory_group, 0U);
  EXPECT_EQ(limits().cpus, 0);
}

TEST_F(JobLimitsTest, TheLowestLimitOfAllGroupsHolds) {
  write("proc/meminfo", "MemTotal: 4000000 kB\n");
  write("proc/self/cgroup", "0::/job_7/task_1\n");
  write("cgroup/job_7/task_1/memory.max", "max\n");
  write("cgroup/job_7/task_1/cpu.max", "max 100000\n");
  write("cgroup/job_7/memory.max", "1000000\n");
  write("cgroup/job_7/cpu.max", "250000 100000\n");
  EXPECT_EQ(limits().memory_bytes, 1'000'000U);
  EXPECT_NE(limits().memory_group, 0U);
  EXPECT_DOUBLE_EQ(limits().cpus, 2.5);
}

TEST_F(JobLimitsTest, TheOlderCgroupsAreReadToo) {
  write("proc/meminfo", "MemTotal: 4000000 kB\n");
  write("proc/self/cgroup", "4:memory:/job_7\n1:cpu:/job_7\n0::/\n");
  write("cgroup/memory/job_7/memory.limit_in_bytes", "1000000\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/cpu/job_7/cpu.cfs_quota_us", "150000\n");
  write("cgroup/cpu/job_7/cpu.cfs_period_us", "100000\n");
  write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory_bytes, 1'000'000U);
  EXPECT_DOUBLE_EQ(limits().cpus, 1.5);
}

}  // namespace
}  // namespace lockstep
