// Tests of lockstep-plan with --mixture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MixtureTool : public PlanTool {
 protected:
  // Writes two lists: 40 samples of 10 to 49 tokens, and five long ones.
  MixtureTool() {
    std::string text = "n\n";
    for (int i = 0; i < 40; ++i) text += std::to_string(10 + i) + "\n";
    write("web.csv", text);
    write("books.csv", "length\n60\n70\n80\n90\n95\n");
  }

  static nlohmann::json mixture() {
    return {{"parts",
             {{{"name", "web"}, {"lengths", "web.csv"}, {"column", "n"}},
              {{"name", "books"}, {"lengths", "books.csv"}}}},
            {"weights", {1, 1}},
            {"steps", 30}};
  }
  std::string file(const nlohmann::json& mixture) const { return write("mixture.json", mixture.dump()); }

  // Makes a plan of the mixture and returns the JSON that the tool prints.
  nlohmann::json make_mixture(const nlohmann::json& mixture, const std::string& cap = "100",
                              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"make",  "--mixture", file(mixture),  "--ranks", "2",
                                      "--cap", cap,         "--accumulate", "2",       "--cost",
                                      "20,1",  "--out",     plan(),         "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult made = tool(words);
    EXPECT_EQ(made.exit_code, 0) << made.error;
    return nlohmann::json::parse(made.output);
  }
};

TEST_F(MixtureTool, MakesAPlanAndPrintsItsNumbers) {
  for (const char* too_long : {"refuse", "split", "truncate", "skip"}) {
    // All books but one are longer than a cap of 65.
    const std::string cap = too_long == std::string("refuse") ? "100" : "65";
    const nlohmann::json made = make_mixture(mixture(), cap, {"--too-long", too_long});
    EXPECT_EQ(made["steps"], 30) << too_long;
    EXPECT_EQ(made["minimum_steps"], 30) << too_long;
    EXPECT_GT(made["step_tokens_mean"], 0.8) << too_long;
    EXPECT_EQ(made["left"], lines_of(read_text_file(plan()))[0]["mixture"]["left"].size()) << too_long;
  }
}

TEST_F(MixtureTool, ThePlanFileHasTheStepsAndTheMixture) {
  make_mixture(mixture());
  const auto lines = lines_of(read_text_file(plan()));
  ASSERT_EQ(lines.size(), 31U);
  EXPECT_EQ(lines[0]["samples"], 45);
  EXPECT_EQ(lines[0].size(), 10U);
  const nlohmann::json& planned = lines[0]["mixture"];
  EXPECT_EQ(planned["parts"][1]["name"], "books");
  EXPECT_EQ(planned["parts"][1]["samples"], 5);
  EXPECT_EQ(planned["weights"], mixture()["weights"]);
  EXPECT_EQ(planned["steps"], 30);
  for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i - 1);
  EXPECT_GT(planned["parts"][1]["drawn"], 10U) << "the books are used more than twice";
  EXPECT_TRUE(
      std::any_of(lines.begin() + 1, lines.end(), [](const auto& line) { return line.contains("epochs"); }));
}

TEST_F(MixtureTool, EachMistakeInTheFileIsReportedInOneLine) {
  const auto refused = [&](const std::function<void(nlohmann::json&)>& damage, const std::string& why) {
    nlohmann::json damaged = mixture();
    damage(damaged);
    const ProcessResult result = tool({"make", "--mixture", file(damaged), "--ranks", "2", "--cap", "100"});
    EXPECT_EQ(result.exit_code, 1) << why;
    EXPECT_THAT(result.error, AllOf(HasSubstr("mixture.json: "), HasSubstr(why)));
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  };
  refused([](auto& m) { m = 3; }, "3 is not a JSON object");
  refused([](auto& m) { m.erase("steps"); }, "\"steps\" is missing");
  refused([](auto& m) { m["steps"] = -1; }, "\"steps\" must be a whole number of at least 0, not -1");
  refused([](auto& m) { m["steps"] = 0; }, "needs a number of steps");
  refused([](auto& m) { m["seed"] = 1; }, "unknown key \"seed\"");
  refused([](auto& m) { m["parts"] = "web"; }, "\"parts\" must be a list, not \"web\"");
  refused([](auto& m) { m["parts"][0].erase("name"); }, "\"name\" is missing");
  refused([](auto& m) { m["parts"][0].erase("lengths"); }, "needs exactly one source of lengths");
  refused([](auto& m) { m["parts"][0]["packed"] = {"x"}; }, "needs exactly one source of lengths");
  refused([](auto& m) { m["parts"][0]["lengths"] = "none.csv"; }, "none.csv");
  refused(
      [](auto& m) {
        m["parts"][0] = {{"name", "h"}, {"histogram", "web.csv"}};
      },
      "\"samples\" is missing");
  refused(
      [](auto& m) {
        m["parts"][0] = {{"name", "p"}, {"packed", {1}}};
      },
      "\"packed\" must be a string, not 1");
  refused([](auto& m) { m["weights"] = {1}; }, "1 weights for 2 data sets");
  refused([](auto& m) { m["weights"] = {1, "a"}; }, "\"weights\" must be a number, not \"a\"");
  const ProcessResult no_json =
      tool({"make", "--mixture", write("mixture.json", "{"), "--ranks", "2", "--cap", "100"});
  EXPECT_THAT(no_json.error, HasSubstr("mixture.json: the file is not valid JSON"));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--epoch", "1"}, {"--tail", "drop"}, {"--lengths", "x.csv"}}) {
    std::vector<std::string> words = {"make", "--mixture", file(mixture()), "--ranks", "2", "--cap", "100"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(tool(words).exit_code, 2) << more[0];
  }
}

TEST_F(MixtureTool, PartsMayBeHistogramsWithPathsRelativeToTheFile) {
  write("h.csv", "length,count\n20,3\n30,1\n");
  nlohmann::json other = mixture();
  other["parts"][0] = {{"name", "counted"}, {"histogram", "h.csv"}, {"samples", 400}};
  make_mixture(other);
  EXPECT_EQ(lines_of(read_text_file(plan()))[0]["samples"], 405);
  const ProcessResult lengths = tool({"stats", "--mixture", file(other), "--json"});
  EXPECT_EQ(nlohmann::json::parse(lengths.output)["samples"], 405) << lengths.error;
}

}  // namespace
}  // namespace lockstep::data
