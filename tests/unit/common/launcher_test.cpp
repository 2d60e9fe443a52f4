#include "common/launcher.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include "common/error.h"

namespace lockstep {
namespace {

// Sets the variables of a launcher for the time of a test.
class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() { clear(); }
  ~LauncherTest() override { clear(); }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  static void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(LauncherTest, NothingInTheEnvironmentMeansOneRank) {
  EXPECT_FALSE(mpi_rank());
  EXPECT_NO_THROW(check_that_alone());
}

TEST_F(LauncherTest, MpirunAndPmixMeanMpi) {
  set("OMPI_COMM_WORLD_RANK", "1");
  EXPECT_EQ(mpi_rank(), 1);
}

TEST_F(LauncherTest, SrunWithPmixMeansMpi) {
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  set("PMIX_RANK", "1");
  EXPECT_EQ(mpi_rank(), 1);
}

TEST_F(LauncherTest, ABatchScriptIsOneRank) {
  set("SLURM_PROCID", "0");
  EXPECT_FALSE(mpi_rank());
  EXPECT_NO_THROW(check_that_alone());
}

TEST_F(LauncherTest, SrunWithoutPmixIsRejectedForSeveralTasks) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_FALSE(mpi_rank());
  EXPECT_THROW(check_that_alone(), UsageError);
}

TEST_F(LauncherTest, SrunWithOneTaskNeedsNoPmix) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_FALSE(mpi_rank());
  EXPECT_NO_THROW(check_that_alone());
}

}  // namespace
}  // namespace lockstep
