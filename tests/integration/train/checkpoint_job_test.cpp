// Checkpoints on bad storage: slow storage does not end a job, and what ends it is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/process.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointJob : public ::testing::Test {
 protected:
  ProcessResult run(const std::string& how, const std::string& timeout) const {
    const testing::MpiMemory memory;
    ::setenv("LOCKSTEP_TIMEOUT", timeout.c_str(), 1);
    return run_process(testing::mpi_command("2", {CHECKPOINT_JOB, how, (folder_ / "run").string()}));
  }
  testing::TemporaryFolder folder_;
};

// Each piece takes 0.4 s, and a checkpoint more than the timeout: of writing, of checking and of loading it.
TEST_F(CheckpointJob, SlowStorageIsNotTakenForAHang) {
  const auto result = run("slow", "2");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("loaded 1\n"));
}

TEST_F(CheckpointJob, AStuckFileIsNamedWithTheBytesThatAreDone) {
  for (const std::string work : {"writing", "reading"}) {
    const auto result = run("stuck-" + work, "2");
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(
        result.error,
        AllOf(
            HasSubstr("rank 0 on "), HasSubstr(": " + work + " "),
            HasSubstr(
                "model.safetensors stands still at 8.00 MiB of 32.0 MiB for 2 s (LOCKSTEP_TIMEOUT): check that the file system responds\n")));
  }
}

// Rank 1, the first one of its node, cannot write its report either.
TEST_F(CheckpointJob, TheReasonOfARankThatCannotWriteReachesRankZero) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);
  const auto result = run("full", "60");
  ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("save: cannot write the checkpoint of step 1: rank 0 on "),
                                   HasSubstr("rank 1 on "), HasSubstr("No space left on device")));
}

// Rank 1 gets a signal; a function below main saves and calls StopSignal::exit() on both ranks.
TEST_F(CheckpointJob, AStoppedTrainingEndsWithTheCodeForAnotherStartFromAnyFunction) {
  const auto result = run("stop", "60");
  EXPECT_EQ(result.exit_code, 75) << result.error;
  EXPECT_THAT(result.error, Not(HasSubstr("lockstep: rank ")));
  EXPECT_THAT(run("load", "60").output, HasSubstr("loaded 3\n"));
}

TEST_F(CheckpointJob, ASecondJobInTheFolderGetsALineAndTheFirstOneGoesOn) {
  const auto result = run("shared", "60");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("the other one: exit 1: "), HasSubstr("uses the folder of checkpoints"),
                    HasSubstr(" (docs/users/checkpoints.md)\n"), HasSubstr("loaded 1\n")));
}

}  // namespace
}  // namespace lockstep
