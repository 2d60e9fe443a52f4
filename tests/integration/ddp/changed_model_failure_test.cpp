// If only one rank changes its model, the job ends with a line that names the parameter and both ranks. Ranks
// neither wait for each other nor train different models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "common/process.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The standard error of a job that must fail.
std::string error_of_job(std::vector<std::string> program) {
  const testing::MpiMemory memory;
  ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
  program.insert(program.begin(), CHANGING_JOB);
  const auto result = run_process(testing::mpi_command("2", program));
  EXPECT_NE(result.exit_code, 0);
  return result.error;
}

TEST(ModelChangedOnOneRank, EndsTheJobWithTheParametersName) {
  EXPECT_THAT(error_of_job({"loaded", "0"}),
              AllOf(HasSubstr("rank 0 calls broadcast of a changed model ('first.weight' was loaded"),
                    HasSubstr("rank 1 calls all_reduce of the step's message")));
  EXPECT_THAT(error_of_job({"converted", "1", "ranks"}),
              AllOf(HasSubstr("rank 1 calls broadcast of a changed model ('first.weight' was loaded or conv"),
                    HasSubstr("rank 0 calls all_reduce of the step's message")));
  EXPECT_THAT(error_of_job({"extended", "1", "ranks", "find-unused"}),
              HasSubstr("rank 1 calls broadcast of a changed model ('second.weight' was added)"));
}

TEST(ModelChangedOnOneRank, ByFreezingIsRefusedByName) {
  const char* const message =
      "parameter 'first.bias' was frozen after DistributedDataParallel was constructed";
  EXPECT_THAT(error_of_job({"frozen", "1"}), HasSubstr(message));
  EXPECT_THAT(error_of_job({"frozen", "0", "ranks"}), HasSubstr(message));
}

}  // namespace
}  // namespace lockstep
