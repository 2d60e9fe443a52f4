// Faults in a real job under mpirun: the report names the rank and the cause, and nothing if there is no fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <string>
#include <vector>

#include "common/process.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/report.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using report::Cause;
using ::testing::ElementsAre;

class StragglingJob : public ::testing::Test {
 protected:
  StragglingJob() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);  // so that gradients are sent as messages
  }
  ~StragglingJob() override {
    ::unsetenv("LOCKSTEP_REPORT_DIR");
    ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  }

  void SetUp() override {
    cpu_set_t allowed;
    ::sched_getaffinity(0, sizeof(allowed), &allowed);
    if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "each rank needs a core";
  }

  // Runs the job and reads its records.
  static report::Run run(const std::string& fault) {
    const testing::TemporaryFolder records;
    ::setenv("LOCKSTEP_REPORT_DIR", records.path().c_str(), 1);
    std::vector<std::string> command = testing::mpi_command("2", {STRAGGLING_JOB, fault, "1"});
    command.insert(command.begin(), {"setsid", "--wait"});  // the job raises the priority of its session
    const ProcessResult result = run_process(command);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return report::load({records.path()});
  }

  static void expect_rank_1(const std::string& fault, Cause cause) {
    const report::Run job = run(fault);
    const auto all = report::diagnose(job).late;
    ASSERT_FALSE(all.found.empty()) << report::to_text(job);
    EXPECT_EQ(all.found[0].cause, cause) << report::to_text(job);
    EXPECT_THAT(all.found[0].ranks, ElementsAre(1)) << report::to_text(job);
    EXPECT_LT(all.found[0].step_ms_without, all.step_ms);
    EXPECT_GT(all.ranks.at(1).to_peers, 1.1);
    EXPECT_EQ(all.ranks.at(0).late_rank, 1) << report::to_text(job);
  }

  const testing::MpiMemory memory_;
};

// Other programs on the machine may disturb a rank, but not in each of several runs.
TEST_F(StragglingJob, WithoutAFaultRaisesNoAlarm) {
  std::string text;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const report::Run job = run("none");
    ASSERT_GT(report::diagnose(job).late.steps, 50);
    if (report::diagnose(job).advice.empty()) return;
    text = report::to_text(job);
  }
  FAIL() << text;
}

TEST_F(StragglingJob, WithAnotherProcessOnARanksCoreHasASlowWorker) {
  expect_rank_1("hog", Cause::slow_worker);
}

TEST_F(StragglingJob, WithLongSamplesOnARankHasUnevenInput) {
  expect_rank_1("long", Cause::uneven_input);
}

TEST_F(StragglingJob, WithSlowReadsOnARankHasLateInputData) {
  expect_rank_1("reads", Cause::input_data);
}

TEST_F(StragglingJob, WithARankThatWritesCheckpointsAloneWaitsForThem) {
  expect_rank_1("checkpoint", Cause::checkpoint);
}

// A delayed message is late on both ends of the link, so it names no rank.
TEST_F(StragglingJob, WithADelayedLinkWaitsForTheNetwork) {
  const report::Run job = run("link");
  const auto all = report::diagnose(job).late;
  ASSERT_FALSE(all.found.empty()) << report::to_text(job);
  EXPECT_EQ(all.found[0].cause, Cause::network) << report::to_text(job);
  EXPECT_GT(all.network_ms, 10);
}

}  // namespace
}  // namespace lockstep
