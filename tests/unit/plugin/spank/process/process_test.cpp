#include "plugin/spank/process/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plugin/spank/process/report.h"
#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/message_of.h"

namespace lockstep::spank {

// Inside Slurm this writes to the daemon's log.
void log(const std::string& text) noexcept {
  say(text);
}

namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kTimeout{60};

Command shell(const std::string& script) {
  Command command;
  command.arguments = {"/bin/sh", "-c", script};
  return command;
}

TEST(Process, CollectsBothOutputsAndTheExitCode) {
  const CommandResult result = capture(shell("echo out; echo err >&2; exit 7"), kTimeout);
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.error, "err\n");
}

TEST(Process, ASignalIsAnExitCodeAsInAShell) {
  EXPECT_EQ(capture(shell("kill -9 $$"), kTimeout).exit_code, 137);
}

TEST(Process, AHangingProcessIsKilledWithItsChildren) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  // With open and with closed outputs.
  for (const char* const script : {"echo out; sleep 600; true", "exec >&- 2>&-; sleep 600; true"}) {
    Command command = shell(script);
    command.descriptors = {pipe[1]};
    const CommandResult result = capture(command, std::chrono::milliseconds(300));
    EXPECT_FALSE(result.in_time);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  }
  ::close(pipe[1]);
  // The killed children held the write end.
  char byte = 0;
  ::alarm(60);
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0);
  ::alarm(0);
  ::close(pipe[0]);
}

TEST(Process, InputOfAnyLengthArrives) {
  Command command = shell("wc -c");
  EXPECT_EQ(capture(command, kTimeout).output, "0\n");
  command.input.assign(1'000'000, 'x');
  EXPECT_EQ(capture(command, kTimeout).output, "1000000\n");
}

TEST(Process, TheEnvironmentIsClean) {
  ::setenv("LD_PRELOAD_EXAMPLE", "evil", 1);
  const Command command = shell("env");
  const CommandResult result = capture(command, kTimeout);
  EXPECT_THAT(result.output, Not(HasSubstr("LD_PRELOAD_EXAMPLE")));
  EXPECT_THAT(result.output, HasSubstr("PATH=/usr/bin:/bin"));
}

TEST(Process, OnlyTheCommandsDescriptorsAreOpenAndHaveTheirNumbers) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ASSERT_EQ(::write(pipe[1], "through\n", 8), 8);
  Command command = shell("ls /proc/self/fd | tr '\\n' ' '; head -n 1 <&4");
  command.descriptors = {pipe[1], pipe[0]};
  const CommandResult result = capture(command, kTimeout);
  // 5 is the folder that ls has open.
  EXPECT_EQ(result.output, "0 1 2 3 4 5 through\n");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Process, AHelperCannotGainPrivileges) {
  EXPECT_THAT(capture(shell("grep NoNewPrivs /proc/self/status"), kTimeout).output, HasSubstr("1"));
}

TEST(Process, AMissingProgramIsNamed) {
  Command command;
  command.arguments = {"/nonexistent/lockstep-pin"};
  EXPECT_THAT(message_of([&] { run(command); }),
              HasSubstr("cannot run /nonexistent/lockstep-pin: No such file"));
}

TEST(Process, AHelperDiesWithItsParent) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(pipe[0]);
    Command command = shell("exec sleep 600");
    command.descriptors = {pipe[1]};
    start(command);
    ::_exit(0);
  }
  ::close(pipe[1]);
  ::waitpid(parent, nullptr, 0);
  // The helper holds the write end, so read() returns when the helper has ended.
  char byte = 0;
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0);
  ::close(pipe[0]);
}

TEST(Process, AUsersChildCannotBecomeRootAgain) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_TRUE(as_user(12345, 12346, std::chrono::seconds(20), [] {
    if (::setuid(0) == 0 || ::seteuid(0) == 0 || ::setresuid(0, 0, 0) == 0) throw Error("became root again");
    if (::getuid() != 12345 || ::getgid() != 12346 || ::getgroups(0, nullptr) != 0)
      throw Error("not the user");
  }));
  EXPECT_FALSE(as_user(12345, 12346, std::chrono::seconds(20), [] { throw Error("failed"); }));
}

// Any process of the user may stop it.
TEST(Process, AUsersChildThatIsStoppedIsKilledWithItsHelpers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const auto stopped = [&](const std::function<void()>& work) {
    ::alarm(60);
    const bool succeeded = as_user(12345, 12346, std::chrono::milliseconds(300), work);
    ::alarm(0);
    return succeeded;
  };
  EXPECT_FALSE(stopped([] { ::kill(::getpid(), SIGSTOP); }));
  EXPECT_FALSE(stopped([&] {
    Command helper = shell("kill -STOP $$");
    helper.descriptors = {pipe[1]};
    helper.dies_with_parent = false;
    run(helper);
  }));
  ::close(pipe[1]);
  // The helper held the write end.
  char byte = 0;
  ::alarm(60);
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0);
  ::alarm(0);
  ::close(pipe[0]);
}

TEST(Process, TheHelperOfThePluginsOwnVersionIsPreferred) {
  const lockstep::testing::TemporaryFolder temporary;
  const std::filesystem::path& prefix = temporary.path();
  const std::string bin = (prefix / "bin").string();
  EXPECT_EQ(helper_program(bin, "lockstep-stage"), bin + "/lockstep-stage");
  const std::filesystem::path own = prefix / "lib/lockstep" / LOCKSTEP_VERSION / "lockstep-stage";
  std::filesystem::create_directories(own.parent_path());
  std::ofstream(own) << "#!/bin/sh\n";
  std::filesystem::permissions(own, std::filesystem::perms::owner_all);
  EXPECT_EQ(helper_program(bin, "lockstep-stage"), own.string());
  EXPECT_EQ(helper_program(bin + "/", "lockstep-stage"), own.string());
  EXPECT_EQ(helper_program(bin, "lockstep-pin"), bin + "/lockstep-pin");
  // An administrator's own folder has no prefix.
  const std::string tools = (prefix / "opt").string();
  EXPECT_EQ(helper_program(tools, "lockstep-stage"), tools + "/lockstep-stage");
}

}  // namespace
}  // namespace lockstep::spank
