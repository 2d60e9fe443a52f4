// One rank's failure ends the whole job: soon, with an exit code that says so, and a line that says who and
// why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "common/clock.h"
#include "common/process.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Job {
  ProcessResult result;
  double seconds = 0;
};

Job run(const std::string& how, const std::string& ranks = "2", const std::string& timeout = "60") {
  ::setenv("LOCKSTEP_TIMEOUT", timeout.c_str(), 1);
  const std::uint64_t begin = monotonic_ns();
  Job job;
  job.result = run_process({MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np",
                            ranks, FAILING_JOB, how});
  job.seconds = seconds_between(begin, monotonic_ns());
  return job;
}

TEST(Job, EndsWellWhenNothingIsWrong) {
  const Job job = run("well");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: 2 ranks on 1 node (mpi); rank 0 computes with"));
}

TEST(Job, IsOneRankWithoutALauncher) {
  const auto result = run_process({FAILING_JOB, "well"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("lockstep: 1 rank on 1 node (single)"));
}

TEST(Job, EndsWithALineWhenAnExceptionLeavesMain) {
  const Job job = run("throw");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: rank 1 on " + host_name() +
                                          ": sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWithALineWithoutALauncherToo) {
  const auto result = run_process({FAILING_JOB, "throw"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("lockstep: rank 0 on " + host_name() +
                                      ": sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWhenMainCatchesTheExceptionOfOneRank) {
  const Job job = run("caught");
  EXPECT_EQ(job.result.exit_code, 3) << job.result.error;
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error, HasSubstr("training failed: sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWhenMainCatchesThatOneRankCannotStart) {
  const Job job = run("no-start");
  EXPECT_EQ(job.result.exit_code, 3) << job.result.error;
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error, HasSubstr("training failed: SLURM_JOB_ID='none' is not an integer\n"));
}

TEST(Job, EndsWithALineWhenAnExceptionComesAfterWorld) {
  const Job job = run("afterwards");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_THAT(job.result.error, HasSubstr(": the report cannot be written\n"));
  EXPECT_THAT(job.result.error, Not(HasSubstr("MPI_Abort")));
}

TEST(Job, GoesOnWhenAForkedProcessExits) {
  const Job job = run("forks");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
}

TEST(Job, MayWaitForAsLongAsANumberCanSay) {
  const Job job = run("well", "2", "9999999999");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
}

TEST(Job, TakesTheOutermostOfNestedThreadNumbers) {
  ::setenv("OMP_NUM_THREADS", "2,1", 1);
  const Job job = run("well");
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
  EXPECT_THAT(job.result.error, HasSubstr("rank 0 computes with 2 threads"));
}

TEST(Job, EndsWhenOneRankExits) {
  const Job job = run("exit");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error,
              HasSubstr("lockstep: rank 1 on " + host_name() + ": the program exited before World ended"));
}

TEST(Job, EndsWhenOneRankIsKilled) {
  const Job job = run("killed");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
}

TEST(Job, EndsAfterTheTimeoutWhenOneRankIsStopped) {
  const Job job = run("stopped", "2", "1");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error,
              HasSubstr("lockstep: rank 0 on " + host_name() +
                        ": all_reduce of bucket 7 (4 bytes) did not end within 1 s (LOCKSTEP_TIMEOUT)"));
}

TEST(Job, EndsAfterTheTimeoutWhenOneRankLeavesEarly) {
  const Job job = run("leaves", "2", "1");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error, ContainsRegex("lockstep: rank [01] on .* did not end within 1 s"));
}

TEST(Job, EndsAfterTheTimeoutWhenNobodyWaitsForWhatNeverComes) {
  const Job job = run("unmatched", "2", "1");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.result.error, HasSubstr("the last operations before World's end did not end within 1 s"));
}

}  // namespace
}  // namespace lockstep
