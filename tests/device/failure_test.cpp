// If a device, NCCL or another rank fails, the job ends soon, with one line that names the rank and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "common/process.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class DeviceFailure : public ::testing::Test {
 protected:
  DeviceFailure() {
    ::setenv("LOCKSTEP_TIMEOUT", "2", 1);
    ::setenv("SIMULATED_MEMORY", folder_.path().c_str(), 1);
  }

  // The lines in which ranks report a failure.
  static std::string failure_of(const std::string& how, const std::string& ranks) {
    const testing::MpiMemory memory;
    const ProcessResult result = run_process(testing::mpi_command(ranks, {FAILING_DEVICE_JOB, how}));
    EXPECT_NE(result.exit_code, 0);
    std::vector<std::string> lines;
    std::istringstream text(result.error);
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with("lockstep: rank ")) lines.push_back(line);
    }
    EXPECT_THAT(lines, SizeIs(1)) << result.error;
    return lines.empty() ? "" : lines.front();
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(DeviceFailure, ARankThatTakesNoPartIsNoticedByTheWatchdog) {
  // On a busy machine the barrier after it may be overdue in the same moment.
  EXPECT_THAT(failure_of("absence", "2"),
              ContainsRegex("bucket 1 .*2 s \\(LOCKSTEP_TIMEOUT\\)|2 s \\(LOCKSTEP_TIMEOUT\\), queued after "
                            "all_reduce of bucket 1 "));
}

TEST_F(DeviceFailure, ARankThatNeverStartsIsNoticed) {
  EXPECT_THAT(failure_of("setup", "2"), HasSubstr("the start of NCCL among all ranks"));
}

TEST_F(DeviceFailure, AnErrorOfNcclEndsTheJobWithItsWords) {
  EXPECT_THAT(
      failure_of("collective", "1"),
      AllOf(HasSubstr("barrier of step"), HasSubstr("failed: NCCL among all ranks: remote process exited")));
}

TEST_F(DeviceFailure, AnErrorOfTheDeviceEndsTheJobWithItsWords) {
  EXPECT_THAT(failure_of("device", "1"), HasSubstr("unspecified launch failure"));
}

TEST_F(DeviceFailure, TheTimeForWhichTheJobWasSuspendedDoesNotCount) {
  const testing::MpiMemory memory;
  const ProcessResult result = run_process(testing::mpi_command("2", {FAILING_DEVICE_JOB, "suspended"}));
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

TEST_F(DeviceFailure, ThereMayBeNoDevice) {
  ::setenv("SIMULATED_DEVICES", "0", 1);
  const ProcessResult result = run_process({NCCL_TEST});
  ::unsetenv("SIMULATED_DEVICES");
  EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
  EXPECT_THAT(result.output,
              HasSubstr("[       OK ] NcclWithoutEnoughDevices.IsRejectedOnEveryRankWithTheReason"));
}

TEST_F(DeviceFailure, RunShLoadsTheSimulatedLibrariesFirst) {
  const ProcessResult result = run_process({RUN, "env"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("libcudart.so"), HasSubstr("libnccl.so.2")));
}

}  // namespace
}  // namespace lockstep
