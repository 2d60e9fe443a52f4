#include "common/tool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "common/error.h"
#include "common/files.h"

namespace lockstep {
namespace {

// Runs a tool with one verb, "work", that calls a given function.
int run(std::vector<std::string> words, const std::function<void()>& work) {
  Tool tool("lockstep-test", "A tool.");
  tool.verb("work", "Works.", work);
  words.insert(words.begin(), "lockstep-test");
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStderr();
  return tool.run(static_cast<int>(argv.size()), argv.data());
}

std::string error_output() {
  return ::testing::internal::GetCapturedStderr();
}

TEST(ToolHabits, SuccessExitsWithZeroAndPrintsNothing) {
  EXPECT_EQ(run({"work"}, [] {}), 0);
  EXPECT_EQ(error_output(), "");
}

TEST(ToolHabits, FailedWorkPrintsOneLineAndExitsWithOne) {
  EXPECT_EQ(run({"work"}, [] { throw Error("n2: no space"); }), 1);
  EXPECT_EQ(error_output(), "lockstep-test: n2: no space\n");
}

TEST(ToolHabits, AWrongValueExitsWithTwo) {
  EXPECT_EQ(run({"work"}, [] { throw UsageError("bad"); }), 2);
  EXPECT_EQ(error_output(), "lockstep-test: bad\n");
}

TEST(ToolHabits, AnUnknownOptionExitsWithTwoAndPointsToHelp) {
  EXPECT_EQ(run({"work", "--nonsense"}, [] {}), 2);
  EXPECT_NE(error_output().find("--help"), std::string::npos);
}

TEST(ToolHabits, ANumberThatIsNotPositiveIsRefusedInAShortLine) {
  Tool tool("lockstep-test", "A tool.");
  int ranks = 0;
  tool.app().add_option("--ranks", ranks)->check(CLI::PositiveNumber);
  std::vector<std::string> words = {"lockstep-test", "--ranks", "0"};
  std::vector<char*> argv = {words[0].data(), words[1].data(), words[2].data()};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(tool.run(3, argv.data()), 2);
  EXPECT_EQ(error_output(), "lockstep-test: --ranks: Value 0 is out of range; see lockstep-test --help\n");
}

TEST(ToolHabits, AMissingVerbExitsWithTwo) {
  EXPECT_EQ(run({}, [] {}), 2);
  EXPECT_NE(error_output(), "");
}

TEST(ToolHabits, AnUnknownVerbIsNamed) {
  EXPECT_EQ(run({"wrok"}, [] {}), 2);
  EXPECT_EQ(error_output(), "lockstep-test: there is no verb 'wrok'; see lockstep-test --help\n");
}

TEST(ToolHabits, AnErrorIsOneLineWhateverNamesItContains) {
  EXPECT_EQ(run({"work"}, [] { throw Error("a\nb\x1b[31m: no space"); }), 1);
  EXPECT_EQ(error_output(), "lockstep-test: a\\x0ab\\x1b[31m: no space\n");
}

TEST(ToolHabits, AnErrorOfTheStandardLibraryNamesItsFile) {
  EXPECT_EQ(run({"work"}, [] { (void)std::filesystem::file_size("/none"); }), 1);
  EXPECT_EQ(error_output(), "lockstep-test: /none: No such file or directory\n");
}

TEST(ToolHabits, AnEmptyNameInAnOptionIsAWrongCall) {
  Tool tool("lockstep-test", "A tool.");
  std::string folder;
  tool.app().add_option("--cache", folder)->check(Tool::named());
  std::string words[] = {"lockstep-test", "--cache", ""};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data()};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(tool.run(3, argv), 2);
  EXPECT_EQ(error_output(), "lockstep-test: --cache: must not be empty; see lockstep-test --help\n");
}

/// Runs a tool in a child process after `prepare`. Returns its exit code; 128 plus the signal if a signal
/// ended it.
int run_apart(const std::function<void()>& prepare, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    prepare();
    Tool tool("lockstep-test", "A tool.");
    std::string name = "lockstep-test";
    char* argv[] = {name.data()};
    ::_exit(tool.run(1, argv, work));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void close_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) ::close(stream);
}

TEST(ToolHabits, AFileNeverTakesTheNumberOfAClosedStandardStream) {
  EXPECT_EQ(run_apart(close_standard_streams,
                      [] {
                        const int fd = ::open("/dev/null", O_RDONLY);
                        if (fd <= STDERR_FILENO) ::_exit(9);
                      }),
            0);
}

TEST(ToolHabits, WithoutStandardErrorTheExitCodeIsTheSame) {
  EXPECT_EQ(run_apart(close_standard_streams, [] { throw Error("no space"); }), 1);
  const auto full = [] { ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO); };
  EXPECT_EQ(run_apart(full, [] { throw UsageError("bad"); }), 2);
}

TEST(ToolHabits, OutputThatCannotBeWrittenIsAFailure) {
  EXPECT_EQ(run_apart(close_standard_streams, [] { Tool::print("result"); }), 1);
}

TEST(ToolHabits, AFileLargerThanTheLimitIsAnErrorNotASignal) {
  const auto limit = [] {
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_FSIZE, &none);
  };
  const auto write = [] {
    const UniqueFd file(::open(::testing::TempDir().c_str(), O_TMPFILE | O_WRONLY, 0600));
    if (file) write_all(file.get(), "x", "file");
  };
  EXPECT_EQ(run_apart(limit, write), 1);
}

}  // namespace
}  // namespace lockstep
