// Tests of lockstep-plan's options for steps, and of the plan file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/plan/tool/plan_file.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"
#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;

class StepOptions : public PlanTool {
 protected:
  // Makes a plan and returns the JSON that make prints.
  nlohmann::json made(const std::string& csv, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"make",  "--lengths", csv,     "--ranks", "2",
                                      "--cap", "100",       "--out", plan(),    "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = tool(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output);
  }

  // Writes a list of two dozen samples of 50 tokens.
  std::string equal_lengths() const {
    std::string text = "length\n";
    for (int i = 0; i < 24; ++i) text += "50\n";
    return write("equal.csv", text);
  }
};

TEST_F(StepOptions, StepTokensAreTheBudgetOfEveryStep) {
  const nlohmann::json printed = made(equal_lengths(), {"--step-tokens", "300"});
  EXPECT_EQ(printed["steps"], 4);
  EXPECT_EQ(printed["minimum_steps"], 4);
  EXPECT_EQ(printed["step_tokens_mean"], 1);
  EXPECT_EQ(printed["step_tokens_max"], 1);
  EXPECT_EQ(printed["micro_batches"], 2);  // 150 tokens for each rank, in micro-batches of 100
  const auto header = lines_of(read_text_file(plan()))[0];
  EXPECT_EQ(header["step_tokens"], 300);
  EXPECT_FALSE(header.contains("equal_micro_batches"));
  made(equal_lengths(), {"--equal-micro-batches"});
  EXPECT_EQ(lines_of(read_text_file(plan()))[0]["equal_micro_batches"], true);
  const nlohmann::json by_default = made(equal_lengths(), {"--stretch", "1"});
  EXPECT_EQ(by_default["steps"], 8) << "0.95 x 2 x 100 tokens hold three samples";
  EXPECT_FALSE(lines_of(read_text_file(plan()))[0].contains("step_tokens"));
}

TEST_F(StepOptions, HelpNamesThem) {
  const std::string help = tool({"make", "--help"}).output;
  for (const char* option : {"--step-tokens", "--stretch", "--equal-micro-batches"})
    EXPECT_THAT(help, HasSubstr(option));
}

TEST_F(StepOptions, APlanFileKeepsAnyNumberOfMicroBatches) {
  const Nested steps = {
      {{{0, 1}, {2}}, {}, {{3}}}, {{}, {{4}, {}, {5}}, {{6 | SampleId{2} << kPieceShift}}}, {{}, {}, {{7}}}};
  PlanOptions options{.ranks = 3, .cap = 100, .accumulate = 2, .step_tokens = 77};
  options.cost = {24576, 0.5};
  options.seed = 9;
  options.epoch = 4;
  options.speeds = {1, 0.25, 3};
  options.too_long = TooLong::split;
  options.tail = Tail::repeat;
  for (const bool flags : {false, true}) {
    options.equal_micro_batches = flags;
    options.padded = flags;
    options.pad_multiple = flags ? 16 : 8;
    Plan written(options, 8, "these data");
    for (const auto& step : steps) written.append_step(step);
    write_plan(written, plan());
    const std::string text = read_text_file(plan());
    EXPECT_THAT(text, HasSubstr(R"({"step":1,"ranks":[[],[[4],[],[5]],[[[6,2]]]]})"));
    const nlohmann::json header = lines_of(text)[0];
    const nlohmann::json expected = {{"version", 2},
                                     {"samples", 8},
                                     {"ranks", 3},
                                     {"cap", 100},
                                     {"accumulate", 2},
                                     {"cost", {24576.0, 0.5}},
                                     {"seed", 9},
                                     {"epoch", 4},
                                     {"fingerprint", "these data"},
                                     {"step_tokens", 77},
                                     {"too_long", "split"},
                                     {"tail", "repeat"},
                                     {"speeds", {1.0, 0.25, 3.0}}};
    nlohmann::json with_flags = expected;
    with_flags.update({{"equal_micro_batches", true}, {"padded", true}, {"pad_multiple", 16}});
    EXPECT_EQ(header, flags ? with_flags : expected);
  }
}

}  // namespace
}  // namespace lockstep::data
