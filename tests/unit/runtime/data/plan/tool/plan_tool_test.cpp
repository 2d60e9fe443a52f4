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
                          "step_tokens_mean", "step_tokens_max", "micro_batches", "seconds"}) {
    EXPECT_TRUE(printed.contains(key) && printed[key].is_number()) << key;
  }
  EXPECT_EQ(printed.size(), 15U);
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
  EXPECT_EQ(tool({"suggest", "--lengths", csv, "--ranks", "4"}).exit_code, 2);
  EXPECT_EQ(tool({"suggest", "--lengths", csv, "--ranks", "4", "--memory", "2M"}).exit_code, 2);
  EXPECT_EQ(tool({"suggest", "--lengths", csv, "--ranks", "4", "--cap", "9", "--memory", "2M",
                  "--token-memory", "1K"})
                .exit_code,
            2);
}

TEST_F(PlanTool, StatsRefusesAPlanOfOtherData) {
  make(lengths());
  std::string other = "length\n900\n";
  for (int i = 1; i < 30; ++i) other += std::to_string(10 + i) + "\n";
  const ProcessResult result = tool({"stats", plan(), "--lengths", write("other.csv", other)});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("the plan was made for other data"));
}

TEST_F(PlanTool, AnEmptyOutIsRefused) {
  EXPECT_EQ(tool({"make", "--lengths", lengths(), "--ranks", "2", "--cap", "100", "--out", ""}).exit_code, 2);
}

TEST_F(PlanTool, CheckAcceptsThePlansOfMake) {
  const std::string csv = lengths();
  make(csv);
  EXPECT_EQ(tool({"check", plan(), "--lengths", csv}).exit_code, 0);
  make(csv, {"--padded"});
  EXPECT_EQ(tool({"check", plan(), "--lengths", csv}).exit_code, 0);
}

TEST_F(PlanTool, CheckAcceptsOtherTailsAndPlannedOverLongSamples) {
  const std::string csv = lengths();
  for (const char* tail : {"fill", "drop", "repeat"}) {
    make(csv, {"--tail", tail});
    EXPECT_EQ(tool({"check", plan(), "--lengths", csv}).exit_code, 0) << tail;
  }
  for (const char* word : {"truncate", "skip", "split"}) {
    const ProcessResult made = tool({"make", "--lengths", csv, "--ranks", "2", "--cap", "25", "--too-long",
                                     word, "--out", plan(), "--json"});
    ASSERT_EQ(made.exit_code, 0) << made.error;
    EXPECT_EQ(nlohmann::json::parse(made.output)["over_long"]["samples"], 14) << word;
    const ProcessResult checked = tool({"check", plan(), "--lengths", csv});
    EXPECT_EQ(checked.exit_code, 0) << word << ": " << checked.error;
  }
  std::string text = read_text_file(plan());
  const auto at = text.find("[29,1]");
  ASSERT_NE(at, std::string::npos);
  expect_refused(text.replace(at, 6, "[29,7]"), csv, HasSubstr("sample 29 has no piece 7"));
  EXPECT_NE(tool({"make", "--lengths", csv, "--ranks", "2", "--cap", "25", "--tail", "x"}).exit_code, 0);
}

TEST_F(PlanTool, CheckPrintsTheSameCostAsMake) {
  const std::string csv = lengths();
  const auto made = nlohmann::json::parse(tool({"make", "--lengths", csv, "--ranks", "2", "--cap", "100",
                                                "--cost", "20,1", "--out", plan(), "--json"})
                                              .output);
  const auto checked = nlohmann::json::parse(tool({"check", plan(), "--lengths", csv, "--json"}).output);
  EXPECT_NEAR(checked["imbalance_cost"].get<double>(), made["imbalance_cost"].get<double>(), 1e-9);
}

TEST_F(PlanTool, StatsPrintsTheSameNumbersAsMake) {
  const std::string csv = lengths();
  auto made = nlohmann::json::parse(
      tool({"make", "--lengths", csv, "--ranks", "3", "--cap", "80", "--out", plan(), "--json"}).output);
  made.erase("seconds");
  EXPECT_EQ(nlohmann::json::parse(tool({"stats", plan(), "--lengths", csv, "--json"}).output), made);
  const auto lengths_only = nlohmann::json::parse(tool({"stats", "--lengths", csv, "--json"}).output);
  EXPECT_EQ(lengths_only["samples"], 30);
  EXPECT_EQ(lengths_only["longest"], 39);
}

TEST_F(PlanTool, CheckFindsAMissingSample) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  lines[1]["ranks"][0][0].erase(0);
  expect_refused(text_of(lines), csv, HasSubstr("1 samples or pieces are missing"));
}

TEST_F(PlanTool, CheckFindsThatMoreThanALastStepIsDropped) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv, {"--tail", "drop"}));
  lines.erase(lines.end() - 1);
  expect_refused(text_of(lines), csv, HasSubstr("a dropped last step has fewer samples than the 2 ranks"));
}

TEST_F(PlanTool, StatsUsesTheSpeedsOfThePlanFile) {
  const std::string csv = lengths();
  make(csv, {"--speeds", "1,0.5"});
  const auto stats = nlohmann::json::parse(tool({"stats", plan(), "--lengths", csv, "--json"}).output);
  EXPECT_LE(stats["imbalance_cost"], 1.1);
  EXPECT_GE(stats["imbalance_cost"], stats["lower_bound_cost"].get<double>() - 1e-9);
  const auto checked = nlohmann::json::parse(tool({"check", plan(), "--lengths", csv, "--json"}).output);
  EXPECT_NEAR(checked["imbalance_cost"].get<double>(), stats["imbalance_cost"].get<double>(), 1e-9);
}

TEST_F(PlanTool, RefusesNumbersThatDoNotFitASampleId) {
  const std::string csv = lengths();
  const std::string text = make(csv);
  const auto at = text.find("[[[") + 3;
  const auto end = text.find_first_of(",]", at);
  for (const auto& [number, why] : {std::pair{"1099511627776", "there is no sample 1099511627776"},
                                    {"[1,65536]", "there is no piece 65536"}}) {
    std::string changed = text;
    expect_refused(changed.replace(at, end - at, number), csv, HasSubstr(why));
    EXPECT_EQ(tool({"stats", plan(), "--lengths", csv}).exit_code, 1);
  }
}

TEST_F(PlanTool, RefusesNumbersOutOfRangeAsWrongCalls) {
  const std::string csv = lengths();
  const std::string histogram = write("h.csv", "length,count\n10,5\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--lengths", csv, "--ranks", "2", "--cap", "-10"},
        {"--lengths", csv, "--ranks", "2147483647", "--cap", "100"},
        {"--lengths", csv, "--ranks", "2", "--cap", "100", "--seed", "-1"},
        {"--lengths", csv, "--ranks", "2", "--cap", "100", "--cost", "1e308,1e308"},
        {"--histogram", histogram, "--samples", "99999999999999", "--ranks", "2", "--cap", "100"}}) {
    std::vector<std::string> call = {"make"};
    call.insert(call.end(), words.begin(), words.end());
    const ProcessResult result = tool(call);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_THAT(result.error, testing::Not(HasSubstr("18446744073709551606")));
  }
  const std::string huge =
      write("huge.csv", "length,count\n10,9223372036854775807\n11,9223372036854775807\n12,9\n");
  const ProcessResult result =
      tool({"make", "--histogram", huge, "--samples", "10", "--ranks", "2", "--cap", "100"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("add up to more"));
}

TEST_F(PlanTool, CheckFindsADuplicatedSample) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  const auto sample = lines[1]["ranks"][0][0][0];
  lines.back()["ranks"][1].push_back({sample});
  expect_refused(text_of(lines), csv, HasSubstr("sample " + sample.dump() + " was already in step 0"));
}

TEST_F(PlanTool, CheckFindsASampleThatDoesNotExist) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  lines[1]["ranks"][0][0][0] = 30;
  expect_refused(text_of(lines), csv, HasSubstr("no sample 30"));
}

TEST_F(PlanTool, CheckFindsAMicroBatchOverTheCap) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  lines[0]["cap"] = 20;
  expect_refused(text_of(lines), csv,
                 AllOf(HasSubstr("step 0, rank 0, micro-batch 0"), HasSubstr("over the cap of 20")));
}

TEST_F(PlanTool, CheckFindsUnequalMicroBatchesInAPlanForEqualOnes) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  lines[2]["ranks"][1].push_back(nlohmann::json::array());
  write("plan.jsonl", text_of(lines));
  EXPECT_EQ(tool({"check", plan(), "--lengths", csv}).exit_code, 0) << "an additional empty one is allowed";
  lines = lines_of(make(csv, {"--equal-micro-batches"}));
  EXPECT_EQ(lines[0]["equal_micro_batches"], true);
  lines[2]["ranks"][1].push_back(nlohmann::json::array());
  expect_refused(text_of(lines), csv, HasSubstr("step 1: rank 1 has"));
}

TEST_F(PlanTool, CheckFindsAStepWithWrongLists) {
  const std::string csv = lengths();
  const auto good = lines_of(make(csv));
  const std::vector<std::pair<nlohmann::json, const char*>> cases = {
      {{{{0}}}, "the step has 1 ranks, not 2"},
      {{{{0}}, {{1}}, {{2}}}, "the step has 3 ranks, not 2"},
      {{{{0}}, 5}, "rank 1 must be a list, not 5"},
      {{{{0}}, {5}}, "rank 1: a micro-batch must be a list, not 5"},
      {{{{0}}, {{"x"}}}, "rank 1: sample \"x\" is not a whole number"},
      {{{{0}}, {{-1}}}, "rank 1: sample -1 is not a whole number"}};
  for (const auto& [ranks, why] : cases) {
    auto lines = good;
    lines[2]["ranks"] = ranks;
    expect_refused(text_of(lines), csv, AllOf(HasSubstr("plan.jsonl:3: "), HasSubstr(why)));
  }
}

TEST_F(PlanTool, CheckRefusesAnInvalidHeader) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  const nlohmann::json header = lines[0];
  const std::vector<std::pair<nlohmann::json, const char*>> cases = {
      {{{"cost", {-1, 0}}}, "cost must be two finite numbers"},
      {{{"cost", {0, 0}}}, "not both 0"},
      {{{"cost", {1e308, 1e308}}}, "too large"},
      {{{"cap", 1'000'000'000'000}}, "must be below 2^32"},
      {{{"speeds", {1, 0}}}, "speed of rank 1"},
      {{{"too_long", "foo"}}, "too_long must be one of refuse, truncate, skip, split, not 'foo'"},
      {{{"tail", nullptr}}, "\"tail\" must be a string, not null"},
      {{{"step_tokens", 0}}, "\"step_tokens\" must be a whole number in 1.."},
      {{{"equal_micro_batches", 1}}, "\"equal_micro_batches\" must be true or false, not 1"},
      {{{"padded", "yes"}}, "\"padded\" must be true or false, not \"yes\""}};
  for (const auto& [change, why] : cases) {
    lines[0] = header;
    lines[0].update(change);
    expect_refused(text_of(lines), csv, AllOf(HasSubstr("plan.jsonl:1: "), HasSubstr(why)));
  }
}

TEST_F(PlanTool, CheckFindsAStepWithoutSamples) {
  const std::string csv = lengths();
  auto lines = lines_of(make(csv));
  lines.insert(lines.begin() + 1, nlohmann::json::parse(R"({"ranks":[[[],[]],[[],[]]]})"));
  for (std::size_t i = 1; i < lines.size(); ++i) lines[i]["step"] = i - 1;
  expect_refused(text_of(lines), csv, HasSubstr("step 0 has no samples"));
}

TEST_F(PlanTool, CheckFindsOtherDataAndAnotherOrder) {
  const std::string csv = lengths();
  const std::string text = make(csv);
  std::string other = read_text_file(csv);
  std::swap(other[other.find(",10") + 2], other[other.find(",11") + 2]);
  expect_refused(text, write("other.csv", other), HasSubstr("fingerprint"));
  expect_refused(text, write("more.csv", read_text_file(csv) + "1,x,5\n"),
                 HasSubstr("30 samples, but the data have 31"));
}

TEST_F(PlanTool, CheckRefusesATruncatedFileAndOtherFiles) {
  const std::string csv = lengths();
  const std::string text = make(csv);
  expect_refused(text.substr(0, text.size() - 5), csv, HasSubstr("cut short"));
  expect_refused("hello\n", csv, HasSubstr("plan.jsonl:1: the line is not valid JSON"));
  expect_refused("", csv, HasSubstr("empty"));
  expect_refused("{\"version\":3}\n", csv,
                 HasSubstr("version 3 cannot be read, this program reads version 2"));
  auto lines = lines_of(text);
  lines.erase(lines.begin() + 1);
  expect_refused(text_of(lines), csv, HasSubstr("plan.jsonl:2: step 1 is here instead of step 0"));
}

TEST_F(PlanTool, CheckCountsSkippedSamplesLikeMake) {
  const std::string csv = lengths();
  const ProcessResult made = tool({"make", "--lengths", csv, "--ranks", "2", "--cap", "25", "--too-long",
                                   "skip", "--out", plan(), "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.error;
  const auto checked = nlohmann::json::parse(tool({"check", plan(), "--lengths", csv, "--json"}).output);
  EXPECT_EQ(checked["dropped"], nlohmann::json::parse(made.output)["dropped"]);
  EXPECT_THAT(tool({"check", plan(), "--lengths", csv}).output,
              HasSubstr("30 samples, 14 left out as planned (14 over the cap, 0 with the last step)"));
}

TEST_F(PlanTool, CheckComparesTheHeaderWithTheCommandLine) {
  const std::string csv = lengths();
  const std::string text = make(csv, {"--seed", "3", "--epoch", "4"});
  const auto check = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"check", plan(), "--lengths", csv};
    words.insert(words.end(), more.begin(), more.end());
    return tool(words);
  };
  EXPECT_EQ(check({"--cap", "100", "--seed", "3", "--epoch", "4"}).exit_code, 0);
  const std::vector<std::pair<std::string, std::string>> others = {
      {"cap", "has cap 100, not 90"}, {"seed", "has seed 3, not 90"}, {"epoch", "has epoch 4, not 90"}};
  for (const auto& [name, why] : others) {
    const ProcessResult other = check({"--" + name, "90"});
    EXPECT_EQ(other.exit_code, 1) << name;
    EXPECT_THAT(other.error, AllOf(HasSubstr(plan() + ": the plan " + why))) << name;
  }
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
  const std::vector<std::vector<std::string>> cases = {
      {"--cost", "nan,1"},   {"--cost", "5"},      {"--cost", "1,2,3"},    {"--cost", "-1,0"},
      {"--stretch", "nan"},  {"--stretch", "0.9"}, {"--step-tokens", "0"}, {"--step-tokens", "-5"},
      {"--accumulate", "0"}, {"--histogram", csv}};
  for (const auto& more : cases) {
    std::vector<std::string> words = {"make", "--lengths", csv, "--ranks", "2", "--cap", "100"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = tool(words);
    EXPECT_EQ(result.exit_code, 2) << more[0] << ' ' << more[1];
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
  EXPECT_EQ(tool({"make", "--ranks", "2", "--cap", "100"}).exit_code, 2);
  EXPECT_EQ(tool({"make", "--histogram", csv, "--ranks", "2", "--cap", "100"}).exit_code, 2);
}

TEST_F(PlanTool, RefusesASampleOverTheCapAndWritesNothing) {
  const ProcessResult result =
      tool({"make", "--lengths", lengths(), "--ranks", "2", "--cap", "35", "--out", plan()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("lengths.csv: sample 26 "), HasSubstr("36 tokens"), HasSubstr("cap of 35")));
  EXPECT_FALSE(std::filesystem::exists(plan()));
}

TEST_F(PlanTool, PlansChecksAndDescribesPackedFolders) {
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
  const ProcessResult checked = tool({"check", plan(), first, second, "--json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.error;
  const ProcessResult balance = tool({"stats", plan(), first, second, "--json"});
  EXPECT_EQ(balance.exit_code, 0) << balance.error;
  EXPECT_EQ(nlohmann::json::parse(balance.output)["steps"], nlohmann::json::parse(made.output)["steps"]);

  // In the other order they are other data, and one pack alone has too few samples.
  const ProcessResult swapped = tool({"check", plan(), second, first});
  EXPECT_EQ(swapped.exit_code, 1);
  EXPECT_THAT(swapped.error, HasSubstr("other data or another order"));
  const ProcessResult half = tool({"check", plan(), first});
  EXPECT_EQ(half.exit_code, 1);
  EXPECT_THAT(half.error, HasSubstr("for 40 samples, but the data have 20"));
}

}  // namespace
}  // namespace lockstep::data
