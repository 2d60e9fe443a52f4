#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "common/error.h"
#include "runtime/comm/launcher.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/single/communicator.h"

namespace lockstep::comm {
namespace {

// The launchers' variables, set for a test and gone after it.
class WithLauncher : public ::testing::Test {
 protected:
  WithLauncher() { clear(); }
  ~WithLauncher() override { clear(); }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  static void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(WithLauncher, NothingInTheEnvironmentMeansOneRank) {
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

TEST_F(WithLauncher, MpirunAndPmixMeanMpi) {
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(detect_launcher(), Launcher::mpi);
}

TEST_F(WithLauncher, SrunWithPmixMeansMpi) {
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  set("PMIX_RANK", "1");
  EXPECT_EQ(detect_launcher(), Launcher::mpi);
}

TEST_F(WithLauncher, ABatchScriptIsOneRank) {
  set("SLURM_PROCID", "0");
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

TEST_F(WithLauncher, SrunWithoutPmixIsRefusedForSeveralTasks) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_THROW(detect_launcher(), UsageError);
}

TEST_F(WithLauncher, SrunWithOneTaskNeedsNoPmix) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_EQ(detect_launcher(), Launcher::none);
}

TEST(SingleCommunicator, IsDoneWhenTheCallReturns) {
  const auto communicator = make_single_communicator("here");
  double value = 3;
  double scale = 0;
  const auto work =
      communicator->all_reduce({&value, 1, DataType::f64}, "a value", {.then = [&] { scale = 0.5; }});
  EXPECT_TRUE(work->done());
  EXPECT_EQ(value, 3);
  communicator->all_reduce({&value, 1, DataType::f64}, "a value", {.scale = &scale})->wait();
  EXPECT_EQ(value, 1.5);
  double gathered = 0;
  communicator->all_gather({&value, 1, DataType::f64}, &gathered, "a value")->wait();
  EXPECT_EQ(gathered, 1.5);
}

TEST(SingleCommunicator, GivesZeroedAlignedMemory) {
  const auto communicator = make_single_communicator("here");
  for (const std::size_t bytes : {0, 1, 1000}) {
    const auto memory = communicator->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0U);
    for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(static_cast<const char*>(memory.get())[i], 0);
  }
}

TEST(Operation, CarriesItsErrorToWhoWaits) {
  Operation operation("all_reduce of bucket 3 (64 bytes)");
  EXPECT_FALSE(operation.done());
  operation.run([] { fail("MPI_Sendrecv: out of luck"); });
  EXPECT_TRUE(operation.done());
  try {
    operation.wait();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::MatchesRegex(
                    "all_reduce of bucket 3 \\(64 bytes\\) failed on rank 0.*: MPI_Sendrecv: out of luck"));
  }
}

TEST(SingleCommunicator, RefusesARootThatIsNotThere) {
  const auto communicator = make_single_communicator("n1");
  int value = 1;
  const auto work = communicator->broadcast({&value, 1, DataType::i32}, 1, "weights");
  EXPECT_THAT([&] { work->wait(); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("there is no rank 1")));
}

}  // namespace
}  // namespace lockstep::comm
