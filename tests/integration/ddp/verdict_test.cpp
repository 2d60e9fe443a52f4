// The first line of a report on real jobs under mpirun: one without a fault, and jobs that are bad on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "common/process.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/report.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using report::Bound;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

// A cgroup of version 1 with a limit. The job's command enters it.
class Cgroup {
 public:
  Cgroup(const std::string& controller, const std::string& file, const std::string& limit)
      : folder_(fs::path("/sys/fs/cgroup") / controller /
                ("lockstep-verdict-" + std::to_string(::getpid()))) {
    std::error_code error;
    made_ =
        fs::create_directory(folder_, error) && bool(std::ofstream(folder_ / file) << limit << std::flush);
  }
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;
  ~Cgroup() { ::rmdir(folder_.c_str()); }

  bool made() const { return made_; }
  void put_in(std::vector<std::string>& command) const {
    const std::vector<std::string> enter = {"sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"",
                                            folder_};
    command.insert(command.begin(), enter.begin(), enter.end());
  }

 private:
  fs::path folder_;
  bool made_ = false;
};

class VerdictOnAJob : public ::testing::Test {
 protected:
  VerdictOnAJob() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::setenv("LOCKSTEP_RECORD", records_.path().c_str(), 1);
  }
  ~VerdictOnAJob() override {
    ::unsetenv("LOCKSTEP_RECORD");
    ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  }

  void SetUp() override {
    cpu_set_t allowed;
    ::sched_getaffinity(0, sizeof(allowed), &allowed);
    if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "each rank needs a core";
  }

  report::Run run(const std::string& fault, const Cgroup* group = nullptr) const {
    std::vector<std::string> command = testing::mpi_command("2", {STRAGGLING_JOB, fault, "1"});
    command.insert(command.begin(), {"setsid", "--wait"});  // the job raises the priority of its session
    if (group != nullptr) group->put_in(command);
    const ProcessResult result = run_process(command);
    EXPECT_EQ(result.exit_code == 0, fault != "memory") << result.error;
    return report::load({records_.path()});
  }

  static std::string first_line(const report::Run& job) {
    return report::verdict_lines(job, report::diagnose(job)).at(0);
  }

  // As the largest part, or beside compute.
  static auto names(const std::string& part) {
    return ::testing::AnyOf(HasSubstr("bound by: " + part), HasSubstr(" % is " + part));
  }

  static std::vector<std::string> rules(const report::Run& job) {
    std::vector<std::string> names;
    for (const auto& advice : report::diagnose(job).advice) names.push_back(advice.rule);
    return names;
  }

  const testing::MpiMemory memory_;
  const testing::TemporaryFolder records_;
};

TEST_F(VerdictOnAJob, WithoutAFaultIsCompute) {
  const report::Run job = run("none");
  EXPECT_THAT(first_line(job), HasSubstr("bound by: compute")) << report::to_text(job);
  EXPECT_THAT(rules(job), Not(Contains(::testing::StartsWith("memory"))));
  EXPECT_THAT(rules(job), Not(Contains("cpu-limit")));
  const auto json = report::to_json(job);
  EXPECT_EQ(json["bound_by"], "compute");
  EXPECT_GT(json["bound_share"], 0.5);
  EXPECT_GT(json["goodput"], 0);
  EXPECT_LT(json["goodput"], json["bound_share"]) << "the start did not train";
  for (const auto& rank : json["ranks"]) {
    EXPECT_GT(rank["cpu_seconds"], 0);
    EXPECT_GT(rank["memory_peak_bytes"], 50'000'000) << "LibTorch alone takes more";
    EXPECT_GT(rank["memory_limit_bytes"], rank["memory_peak_bytes"]);
    EXPECT_GT(rank["read_bytes"], 0);
  }
}

TEST_F(VerdictOnAJob, WithSlowInputIsInput) {
  const report::Run job = run("input");
  EXPECT_THAT(first_line(job), names("input")) << report::to_text(job);
  const auto verdict = report::diagnose(job).verdict;
  EXPECT_GT(verdict->share(Bound::input), 0.4) << report::to_text(job);
  // The reader waits 25 ms for its disk in each step.
  EXPECT_LT(verdict->step_ms_if_twice[0], verdict->step_ms - 12);
}

TEST_F(VerdictOnAJob, WithUnevenWorkIsImbalance) {
  const report::Run job = run("long");
  EXPECT_THAT(first_line(job), names("imbalance")) << report::to_text(job);
}

TEST_F(VerdictOnAJob, WithASlowLinkIsCommunication) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);  // so that gradients are sent as messages
  const report::Run job = run("link");
  EXPECT_THAT(first_line(job), names("communication")) << report::to_text(job);
  EXPECT_THAT(rules(job), Contains("memory-unused")) << report::to_text(job);
}

TEST_F(VerdictOnAJob, WithTooMuchMemoryIsMemory) {
  const Cgroup group("memory", "memory.limit_in_bytes", "800M");
  if (!group.made()) GTEST_SKIP() << "this process cannot make cgroups";
  const report::Run job = run("memory", &group);
  EXPECT_THAT(first_line(job), HasSubstr("Out of memory: ")) << report::to_text(job);
  EXPECT_THAT(first_line(job), HasSubstr("of the 800 MiB of the job's cgroup")) << report::to_text(job);
  EXPECT_THAT(rules(job), Contains("memory-full"));
}

TEST_F(VerdictOnAJob, WithTooFewCpusNamesTheLimit) {
  const Cgroup group("cpu", "cpu.cfs_quota_us", "60000");  // of each 100 ms, for two ranks
  if (!group.made()) GTEST_SKIP() << "this process cannot make cgroups";
  EXPECT_THAT(rules(run("none", &group)), Contains("cpu-limit"));
}

}  // namespace
}  // namespace lockstep
