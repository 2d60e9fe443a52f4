#include "common/process.h"

#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask

#include "common/error.h"

namespace lockstep {
namespace {

TEST(Process, KeepsOutputErrorAndExitCodeApart) {
  const auto result = run_process({"sh", "-c", "echo out; echo err >&2; exit 3"});
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.error, "err\n");
  EXPECT_EQ(result.exit_code, 3);
}

TEST(Process, ReadsMoreThanAPipeHoldsFromBothEnds) {
  const auto result = run_process({"sh", "-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"});
  EXPECT_EQ(result.output.size(), 300000U);
  EXPECT_EQ(result.error.size(), 300000U);
}

TEST(Process, ASignalGivesTheExitCodeOfAShell) {
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}).exit_code, 137);
}

TEST(Process, ASignalThatThisProcessBlocksEndsTheProgram) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const int code = run_process({"sh", "-c", "kill -TERM $$"}).exit_code;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(code, 128 + SIGTERM);
}

TEST(Process, AMissingProgramIsAnError) {
  EXPECT_THROW(run_process({"/nonexistent/program"}), Error);
}

}  // namespace
}  // namespace lockstep
