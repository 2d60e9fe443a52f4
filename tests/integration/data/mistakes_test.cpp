// Each of a newcomer's most frequent mistakes (docs/users/troubleshooting.md) gets a line with what to do, and the page
// to read. The tenth, two programs in one folder of checkpoints, is in ../train/checkpoint_job_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "staging/pack/write/create.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Mistake : public ::testing::Test {
 protected:
  // 40 samples of 10 tokens: two steps of two micro-batches for each of two ranks, at most 64 tokens each.
  Mistake() {
    pack::CreateOptions options;
    options.folder = folder_ / "files";
    options.out = folder_ / "pack";
    options.token_bytes = 2;
    fs::create_directories(options.folder);
    for (int i = 0; i < 40; ++i) {
      options.files.push_back(std::to_string(100 + i));
      write_file_atomically(options.folder / options.files.back(), std::string(20, '\0'));
    }
    pack::create(options);
  }

  // The output of a program that no launcher has started, with these variables (A=B).
  std::string alone(std::vector<std::string> command) const {
    command.insert(command.begin(), "env");
    command.insert(command.end(), {MISTAKEN_JOB, "none", (folder_ / "pack").string()});
    return run_process(command).error;
  }
  // A job of two ranks with this mistake.
  ProcessResult job(const std::string& mistake, const std::string& variable = "A=B") const {
    return run_process(testing::mpi_command("2", {"env", "LOCKSTEP_TIMEOUT=60", "OMP_NUM_THREADS=1", variable,
                                                  MISTAKEN_JOB, mistake, (folder_ / "pack").string()}));
  }

  const testing::MpiMemory memory_;
  testing::TemporaryFolder folder_;
};

TEST_F(Mistake, NoneMeansNoLineWithAPage) {
  const auto result = job("none");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, Not(HasSubstr("(docs/")));
}

TEST_F(Mistake, NoLauncher) {
  for (const std::string variable : {"SLURM_NTASKS=4", "WORLD_SIZE=4"}) {
    EXPECT_THAT(alone({variable}),
                HasSubstr("trains alone although " + variable +
                          ": start it with srun --mpi=pmix, or with mpirun (docs/users/ddp.md)\n"));
  }
}

TEST_F(Mistake, SrunWithoutMpi) {
  EXPECT_THAT(
      alone({"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4"}),
      HasSubstr("srun started 4 tasks without PMIx, so they cannot find each other: use srun --mpi=pmix "
                "(docs/users/troubleshooting.md)\n"));
}

TEST_F(Mistake, ThePackOfTheSourceAlthoughItIsStaged) {
  fs::create_directories(folder_ / "staged/pack");
  const auto result = job("none", "LOCKSTEP_DATA=" + (folder_ / "staged").string());
  const std::string line =
      "although the job has staged it: open $LOCKSTEP_DATA/pack (docs/users/staging.md)\n";
  EXPECT_THAT(result.error, HasSubstr((folder_ / "pack").string() + ", " + line));
  EXPECT_EQ(result.error.find(line), result.error.rfind(line)) << "one rank says so";
  EXPECT_THAT(job("none", "LOCKSTEP_DATA=" + folder_.path().string()).error, Not(HasSubstr(line)));
}

TEST_F(Mistake, ALoopWithoutLastOfStep) {
  const auto result = job("no-last-of-step");
  const std::string line = "optimizer.step() only if batch.last_of_step (docs/users/ddp.md)\n";
  EXPECT_THAT(result.error, HasSubstr(line));
  EXPECT_EQ(result.error.find(line), result.error.rfind(line)) << "once";
}

TEST_F(Mistake, ALoopThatNeverExchangesGradients) {
  const auto result = job("no-exchange");
  const std::string line = "each step without it, as ddp.no_sync_unless(last) does (docs/users/ddp.md)\n";
  EXPECT_THAT(result.error, HasSubstr("lockstep: the optimizer's last step had gradients of this rank only"));
  EXPECT_THAT(result.error, HasSubstr(line));
  EXPECT_EQ(result.error.find(line), result.error.rfind(line)) << "once";
}

TEST_F(Mistake, BothAverages) {
  EXPECT_THAT(job("both-averages").error,
              HasSubstr("rank 1 called loss.backward(), which averages over ranks, but rank 0 called "
                        "ddp.backward(loss_sum, count), which averages by count; use the same call on all "
                        "ranks (docs/users/ddp.md)\n"));
}

TEST_F(Mistake, AParameterThatForwardDoesNotUse) {
  EXPECT_THAT(job("unused-parameter").error,
              ContainsRegex("parameter 'unused.weight' \\(and 1 more\\) did not get a gradient in this "
                            "backward; .* \\(docs/users/ddp.md\\)"));
}

TEST_F(Mistake, FewerStepsOnOneRank) {
  EXPECT_THAT(
      job("fewer-steps").error,
      ContainsRegex("rank [01] .*every rank must call the same operations.* \\(docs/users/ddp.md\\)"));
}

TEST_F(Mistake, NoSetEpoch) {
  EXPECT_THAT(job("no-set-epoch").error,
              HasSubstr("epoch 0 of the loader begins again, with the same batches in the same order: call "
                        "loader.set_epoch(epoch) before each epoch (docs/users/batches.md)\n"));
}

}  // namespace
}  // namespace lockstep
