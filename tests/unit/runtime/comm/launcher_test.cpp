#include "runtime/comm/launcher.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include "common/error.h"

namespace lockstep::comm {
namespace {

// Sets the variables of a launcher for the time of a test.
class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() { clear(); }
  ~LauncherTest() override { clear(); }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  static void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(LauncherTest, NothingInTheEnvironmentMeansOneRank) {
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

TEST_F(LauncherTest, MpirunAndPmixMeanMpi) {
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(detect_launcher(), Launcher::mpi);
}

TEST_F(LauncherTest, SrunWithPmixMeansMpi) {
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  set("PMIX_RANK", "1");
  EXPECT_EQ(detect_launcher(), Launcher::mpi);
}

TEST_F(LauncherTest, ABatchScriptIsOneRank) {
  set("SLURM_PROCID", "0");
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

TEST_F(LauncherTest, SrunWithoutPmixIsRejectedForSeveralTasks) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_THROW(detect_launcher(), UsageError);
}

TEST_F(LauncherTest, SrunWithOneTaskNeedsNoPmix) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

}  // namespace
}  // namespace lockstep::comm
