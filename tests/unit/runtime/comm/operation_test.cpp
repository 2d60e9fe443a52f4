#include "runtime/comm/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"

namespace lockstep::comm {
namespace {

TEST(Operation, ThrowsItsErrorFromWait) {
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

}  // namespace
}  // namespace lockstep::comm
