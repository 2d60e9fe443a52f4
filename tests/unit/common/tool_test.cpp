#include "common/tool.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/error.h"

namespace lockstep {
namespace {

// Runs a tool with one verb, "work", that does what it is given.
int run(std::vector<std::string> words, const std::function<void()>& work) {
  Tool tool("lockstep-test", "A tool.");
  tool.verb("work", "Works.", work);
  words.insert(words.begin(), "lockstep-test");
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  testing::internal::CaptureStderr();
  return tool.run(static_cast<int>(argv.size()), argv.data());
}

std::string error_output() {
  return testing::internal::GetCapturedStderr();
}

TEST(ToolHabits, DoneIsZeroAndSilent) {
  EXPECT_EQ(run({"work"}, [] {}), 0);
  EXPECT_EQ(error_output(), "");
}

TEST(ToolHabits, FailedWorkIsOneLineAndOne) {
  EXPECT_EQ(run({"work"}, [] { throw Error("n2: no space"); }), 1);
  EXPECT_EQ(error_output(), "lockstep-test: n2: no space\n");
}

TEST(ToolHabits, AWrongValueIsTwo) {
  EXPECT_EQ(run({"work"}, [] { throw UsageError("bad"); }), 2);
  EXPECT_EQ(error_output(), "lockstep-test: bad\n");
}

TEST(ToolHabits, AnUnknownOptionIsTwoAndPointsAtHelp) {
  EXPECT_EQ(run({"work", "--nonsense"}, [] {}), 2);
  EXPECT_NE(error_output().find("--help"), std::string::npos);
}

TEST(ToolHabits, ANumberThatIsNotPositiveIsRefusedInAShortLine) {
  Tool tool("lockstep-test", "A tool.");
  int ranks = 0;
  tool.app().add_option("--ranks", ranks)->check(CLI::PositiveNumber);
  std::vector<std::string> words = {"lockstep-test", "--ranks", "0"};
  std::vector<char*> argv = {words[0].data(), words[1].data(), words[2].data()};
  testing::internal::CaptureStderr();
  EXPECT_EQ(tool.run(3, argv.data()), 2);
  EXPECT_EQ(error_output(), "lockstep-test: --ranks: Value 0 is out of range; see lockstep-test --help\n");
}

TEST(ToolHabits, AMissingVerbIsTwo) {
  EXPECT_EQ(run({}, [] {}), 2);
  EXPECT_NE(error_output(), "");
}

}  // namespace
}  // namespace lockstep
