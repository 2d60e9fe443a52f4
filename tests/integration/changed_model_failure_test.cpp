// A model that only one rank has changed ends the job with a line that names the parameter and both ranks:
// replicas neither wait for each other nor train apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "common/process.h"
#include "tests/integration/mpi_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What the job says, which must fail.
std::string error_of_job(const std::vector<std::string>& arguments) {
  const testing::MpiMemory memory;
  ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
  std::vector<std::string> command = {
      MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", CHANGING_JOB};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto result = run_process(command);
  EXPECT_NE(result.exit_code, 0);
  return result.error;
}

TEST(ModelChangedOnOneRank, EndsTheJobWithItsParametersName) {
  EXPECT_THAT(error_of_job({"loaded", "0"}),
              AllOf(HasSubstr("rank 0 asks for broadcast of a changed model ('first.weight' was loaded"),
                    HasSubstr("rank 1 asks for all_reduce of token counts")));
  EXPECT_THAT(
      error_of_job({"converted", "1", "ranks"}),
      AllOf(HasSubstr("rank 1 asks for broadcast of a changed model ('first.weight' was loaded or conv"),
            HasSubstr("rank 0 asks for all_reduce of bucket 0")));
  EXPECT_THAT(error_of_job({"extended", "1", "ranks", "find-unused"}),
              HasSubstr("rank 1 asks for broadcast of a changed model ('second.weight' was added)"));
}

TEST(ModelChangedOnOneRank, IsNamedWhereItWasFrozen) {
  const char* const message = "parameter 'first.bias' was frozen after DistributedDataParallel was made";
  EXPECT_THAT(error_of_job({"frozen", "1"}), HasSubstr(message));
  EXPECT_THAT(error_of_job({"frozen", "0", "ranks"}), HasSubstr(message));
}

}  // namespace
}  // namespace lockstep
