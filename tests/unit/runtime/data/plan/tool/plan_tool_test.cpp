#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "staging/pack/write/create.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(PlanTool, MakesAPlanFileAndPrintsItsNumbers) {
  const ProcessResult result =
      tool({"make", "--lengths", lengths(), "--ranks", "2", "--cap", "100", "--accumulate", "2", "--cost",
            "20,1", "--seed", "3", "--epoch", "4", "--out", plan(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto printed = nlohmann::json::parse(result.output);
  for (const char* key : {"steps", "minimum_steps", "dropped", "duplicated", "fill", "padding",
                          "imbalance_tokens", "imbalance_cost", "lower_bound_cost", "step_mean_ratio", "lag1",
                          "step_tokens_mean", "step_tokens_max", "micro_batches", "seconds", "empty"}) {
    EXPECT_TRUE(printed.contains(key) && printed[key].is_number()) << key;
  }
  EXPECT_EQ(printed.size(), 16U);
  const auto lines = lines_of(read_text_file(plan()));
  ASSERT_EQ(lines.size(), 1 + printed["steps"].get<std::size_t>());
  const nlohmann::json& header = lines[0];
  EXPECT_EQ(header["version"], 2);
  EXPECT_EQ(header["samples"], 30);
  EXPECT_EQ(header["ranks"], 2);
  EXPECT_EQ(header["cap"], 100);
  EXPECT_EQ(header["accumulate"], 2);
  EXPECT_EQ(header["cost"], nlohmann::json({20.0, 1.0}));
  EXPECT_EQ(header["seed"], 3);
  EXPECT_EQ(header["epoch"], 4);
  EXPECT_TRUE(header["fingerprint"].is_string());
  EXPECT_EQ(header.size(), 9U);
  EXPECT_EQ(lines[1]["step"], 0);
  EXPECT_EQ(lines[1]["ranks"].size(), 2U);
  EXPECT_GE(lines[1]["ranks"][1].size(), 1U);
  EXPECT_TRUE(lines[1]["ranks"][1][0].is_array());
}

// Samples of 200 to 999 tokens: at most five fit into a micro-batch of 1,024 tokens.
std::string long_samples() {
  std::string text = "length\n";
  for (int i = 0; i < 2000; ++i) text += std::to_string(200 + i * 7919 % 800) + "\n";
  return text;
}

TEST_F(PlanTool, SuggestRecommendsTheSmallestStepsThatTheRanksShareEvenly) {
  const std::string csv = write("lengths.csv", long_samples());
  const std::vector<std::string> shape = {"--lengths", csv,      "--ranks", "4",     "--cap",
                                          "1024",      "--cost", "768,1",   "--json"};
  const auto planned = [&](const std::string& verb, const std::vector<std::string>& more) {
    std::vector<std::string> words = {verb};
    words.insert(words.end(), shape.begin(), shape.end());
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = tool(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output);
  };
  const auto suggested = planned("suggest", {});
  ASSERT_EQ(suggested.size(), 2U);
  const auto& rows = suggested["rows"];
  ASSERT_EQ(rows.size(), 8U);
  const auto recommended = suggested["recommended"].get<std::size_t>();
  ASSERT_LT(recommended, rows.size());
  EXPECT_GT(rows[0]["imbalance_cost"], 1.05) << "one sample for each rank cannot be balanced";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(i >= recommended || rows[i]["imbalance_cost"] > 1.02) << i;
    EXPECT_TRUE(i == 0 || rows[i]["step_tokens"] > rows[i - 1]["step_tokens"]) << i;
    // A plan with these values has the numbers that are printed.
    const auto made = planned("make", {"--accumulate", rows[i]["accumulate"].dump(), "--step-tokens",
                                       rows[i]["step_tokens"].dump()});
    EXPECT_EQ(rows[i]["steps"], made["steps"]);
    EXPECT_EQ(rows[i]["imbalance_cost"], made["imbalance_cost"]);
  }
  EXPECT_LE(rows[recommended]["imbalance_cost"], 1.02);
}

TEST_F(PlanTool, SuggestTakesAMemoryLimitInsteadOfACap) {
  const std::string csv = write("lengths.csv", long_samples());
  const ProcessResult result =
      tool({"suggest", "--lengths", csv, "--ranks", "4", "--memory", "2M", "--token-memory", "1K", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["cap"], 2048);
}

TEST_F(PlanTool, RefusesCountsThatAddUpToTooMany) {
  const std::string huge =
      write("huge.csv", "length,count\n10,9223372036854775807\n11,9223372036854775807\n12,9\n");
  const ProcessResult result =
      tool({"make", "--histogram", huge, "--samples", "10", "--ranks", "2", "--cap", "100"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("add up to more"));
}

TEST_F(PlanTool, WarnsInOneLineOfFewerSamplesThanRanks) {
  const std::string csv = write("few.csv", "length\n5\n6\n7\n");
  const ProcessResult few = tool({"make", "--lengths", csv, "--ranks", "10", "--cap", "10", "--json"});
  EXPECT_EQ(few.exit_code, 0);
  EXPECT_THAT(few.error, HasSubstr("few.csv: 3 samples for 10 ranks: 7 ranks have none"));
  EXPECT_EQ(nlohmann::json::parse(few.output)["steps"], 1);
  EXPECT_EQ(tool({"make", "--lengths", csv, "--ranks", "3", "--cap", "10"}).error, "");
  EXPECT_THAT(tool({"make", "--lengths", csv, "--ranks", "10", "--cap", "10", "--tail", "drop"}).error,
              AllOf(HasSubstr("10 ranks: --tail drop leaves out all samples"), Not(HasSubstr("none"))));
  EXPECT_THAT(tool({"make", "--lengths", csv, "--ranks", "10", "--cap", "10", "--tail", "repeat"}).error,
              HasSubstr("--tail repeat uses some samples again"));
  const std::string odd = write("few\nand odd.csv", "length\n5\n6\n7\n");
  const std::string said = tool({"make", "--lengths", odd, "--ranks", "10", "--cap", "10"}).error;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(PlanTool, WritingThePlanToStandardOutputKeepsEarlierOutput) {
  const std::string csv = write("few.csv", "length\n5\n6\n7\n");
  const std::string log = write("log", "precious\n");
  // A link like /dev/stdout. The test does not use that one, because root would lose it if the code were
  // wrong.
  std::filesystem::create_symlink("/proc/self/fd/1", log + ".link");
  const ProcessResult result =
      run_process({"/bin/sh", "-c",
                   fmt::format("exec {} make --lengths {} --ranks 1 --cap 100 --out {}.link --json >> {}",
                               LOCKSTEP_PLAN, csv, log, log)});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const std::string all = read_text_file(log);
  EXPECT_THAT(all, AllOf(testing::StartsWith("precious\n{"), HasSubstr("\"steps\":1")));
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 4)
      << "the earlier line, a header, a step and the numbers: " << all;
}

TEST_F(PlanTool, WritesAPlanIntoAPipeWithoutReplacingIt) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd both = open_file(pipe, O_RDWR | O_NONBLOCK);
  const std::string expected = make(lengths());
  EXPECT_EQ(tool({"make", "--lengths", lengths(), "--ranks", "2", "--cap", "100", "--accumulate", "2",
                  "--out", pipe})
                .exit_code,
            0);
  std::string received(2 * expected.size(), 0);
  received.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, ::read(both.get(), received.data(), received.size()))));
  EXPECT_EQ(received, expected);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(PlanTool, WrongCallsExitWithTwo) {
  const std::string csv = lengths();
  const std::string plans = "make --ranks 2 --cap 100 --lengths " + csv + " ";
  const std::string counts = "make --ranks 2 --cap 100 --histogram " + write("h.csv", "length,count\n10,5\n");
  const std::string suggest = "suggest --ranks 4 --lengths " + csv;
  for (const std::string& call : {plans + "--cost nan,1",
                                  plans + "--cost 5",
                                  plans + "--cost 1,2,3",
                                  plans + "--cost -1,0",
                                  plans + "--cost 1e308,1e308",
                                  plans + "--stretch nan",
                                  plans + "--stretch 0.9",
                                  plans + "--step-tokens 0",
                                  plans + "--step-tokens -5",
                                  plans + "--accumulate 0",
                                  plans + "--seed -1",
                                  plans + "--out ''",
                                  plans + "--histogram " + csv,
                                  "make --ranks 2 --cap -10 --lengths " + csv,
                                  "make --ranks 2147483647 --cap 100 --lengths " + csv,
                                  std::string("make --ranks 2 --cap 100"),
                                  counts,
                                  counts + " --samples 99999999999999",
                                  suggest,
                                  suggest + " --memory 2M",
                                  suggest + " --cap 9 --memory 2M --token-memory 1K"}) {
    const ProcessResult result =
        run_process({"/bin/sh", "-c", fmt::format("exec {} {}", LOCKSTEP_PLAN, call)});
    EXPECT_EQ(result.exit_code, 2) << call;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
}

TEST_F(PlanTool, RefusesASampleOverTheCapAndWritesNothing) {
  const ProcessResult result =
      tool({"make", "--lengths", lengths(), "--ranks", "2", "--cap", "35", "--out", plan()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("lengths.csv: sample 26 "), HasSubstr("36 tokens"), HasSubstr("cap of 35")));
  EXPECT_FALSE(std::filesystem::exists(plan()));
}

TEST_F(PlanTool, PlansAndDescribesPackedFolders) {
  std::uint64_t tokens = 0;
  for (const std::string name : {"first", "second"}) {
    std::filesystem::create_directories(folder_ / "files");
    pack::CreateOptions options;
    for (int i = 0; i < 20; ++i) {
      options.files.push_back(fmt::format("{}{:02}.tok", name, i));
      write(std::string("files/") + options.files.back(),
            std::string(static_cast<std::size_t>(2 * (10 + i)), 'x'));
      tokens += 10 + static_cast<std::uint64_t>(i);
    }
    options.folder = folder_ / "files";
    options.out = folder_ / name;
    options.token_bytes = 2;
    pack::create(options);
  }
  const std::string first = (folder_ / "first").string();
  const std::string second = (folder_ / "second").string();
  const ProcessResult described = tool({"stats", first, second, "--json"});
  ASSERT_EQ(described.exit_code, 0) << described.error;
  EXPECT_EQ(nlohmann::json::parse(described.output)["samples"], 40);
  EXPECT_EQ(nlohmann::json::parse(described.output)["tokens"], tokens);

  const ProcessResult made =
      tool({"make", first, second, "--ranks", "2", "--cap", "100", "--out", plan(), "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.error;
  EXPECT_EQ(nlohmann::json::parse(made.output)["dropped"], 0);
}

}  // namespace
}  // namespace lockstep::data
