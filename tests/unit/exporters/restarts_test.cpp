// The restarts of a job, from the lines of lockstep-run and the Checkpointer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "exporters/report/run.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::report {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A file of lines, written as the events happen. Times are seconds since an arbitrary moment.
class RestartsTest : public ::testing::Test {
 protected:
  void start(double at) { add(R"({{"start":0,"at":{},"nodes":["n1"]}})", at); }
  void load(double at, int steps, double seconds) {
    add(R"({{"loaded":{},"at":{},"seconds":{}}})", steps, at, seconds);
  }
  void end(double failed, double at, const std::string& cause, int steps) {
    add(R"({{"end":137,"failed":{},"at":{},"cause":"{}","steps":{}}})", failed, at, cause, steps);
  }
  void end_with(int code, double at) {
    add(R"({{"end":{},"failed":{},"at":{},"cause":"","steps":null}})", code, at, at);
  }
  Restarts read() const {
    write_file_atomically(folder_ / "restarts-7.jsonl", text_);
    return read_restarts(folder_ / "restarts-7.jsonl");
  }
  /// A job of 100 s, whose last start trained in 60 % of its time.
  std::vector<std::string> lines() const {
    return restart_lines(read(), {.end_unix = 100, .goodput = 0.6, .step_seconds = 0.5});
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args... args) {
    text_ += fmt::vformat(format, fmt::make_format_args(args...)) + "\n";
  }
  testing::TemporaryFolder folder_;
  std::string text_;
};

TEST_F(RestartsTest, ALoadAndTheStepsThatWereLostAreShown) {
  start(0);
  load(4, 0, 0.1);
  end(48, 50, "n1: task 1: Killed", 42);
  start(53);
  load(58, 40, 1.5);
  EXPECT_THAT(
      lines(),
      ElementsAre(
          "restarts: 1; no rank ran in 5.00 s of the 1 min 40 s since the first start, and 2 steps were done twice, so at most 56 % of the job's time trained",
          "restart 1 after 53.0 s: n1: task 1: Killed: 2.00 s until the ranks had ended, 3.00 s until the new start, 3.50 s until it could load, 1.50 s to load step 40; 2 steps lost"));
  const nlohmann::json json = restarts_json(read());
  EXPECT_EQ(json[0]["steps_lost"], 2);
  EXPECT_EQ(json[0]["loaded"], 40);
  EXPECT_DOUBLE_EQ(json[0]["load_seconds"], 1.5);
  EXPECT_DOUBLE_EQ(json[0]["launch_seconds"], 3.5);
}

TEST_F(RestartsTest, AStartThatEndsBeforeItLoadsLosesNoStepOfItsOwn) {
  start(0);
  load(4, 0, 0.1);
  end(48, 50, "n1: task 1: Killed", 42);
  start(51);
  end(52, 52, "n1: task 0: Killed", 0);
  start(53);
  load(58, 41, 1);
  EXPECT_THAT(lines()[1], EndsWith("1.00 s until the new start")) << "nothing was loaded";
  EXPECT_THAT(lines()[2], HasSubstr("1.00 s to load step 41; 1 step lost"));
  const nlohmann::json json = restarts_json(read());
  EXPECT_TRUE(json[0]["steps_lost"].is_null());
  EXPECT_TRUE(json[0]["load_seconds"].is_null());
  EXPECT_EQ(json[1]["steps_lost"], 1);
}

TEST_F(RestartsTest, EachStartBeginsWhereItsCheckpointWas) {
  start(0);
  load(1, 0, 0.1);
  end(10, 10, "n1: task 1: Killed", 8);
  start(11);
  load(12, 8, 0.1);
  end(20, 20, "n1: task 1: Killed", 5);
  start(21);
  load(22, 10, 0.1);
  const Restarts restarts = read();
  EXPECT_EQ(restarts.list[0].steps_lost, 0);
  EXPECT_EQ(restarts.list[1].steps_lost, 3);
  EXPECT_EQ(restarts.steps_lost(), 3);
}

TEST_F(RestartsTest, StepsOfAStartThatNobodyCountedAreNotKnown) {
  start(0);
  load(4, 0, 0.1);
  start(60);  // lockstep-run was lost with its node
  load(65, 40, 1.5);
  EXPECT_THAT(lines()[1],
              HasSubstr("its time is not known, 3.50 s until it could load, 1.50 s to load step 40"));
  EXPECT_TRUE(restarts_json(read())[0]["steps_lost"].is_null());
}

TEST_F(RestartsTest, AProgramAfterOneThatSucceededIsNotARestart) {
  start(0);
  end_with(0, 50);
  start(60);
  EXPECT_THAT(lines(), IsEmpty());
  end_with(1, 80);
  start(83);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("restarts: 1; no rank ran in 3.00 s of the 40.0 s"),
                                   HasSubstr("restart 1 after 23.0 s: exit code 1: ")));
}

TEST_F(RestartsTest, WithoutRestartsTheJobHasTheGoodputOfItsStart) {
  start(0);
  EXPECT_EQ(job_goodput(read(), {.end_unix = 100, .goodput = 0.6}), 0.6);
}

}  // namespace
}  // namespace lockstep::report
