// lockstep-plan with --mixture: what it makes, checks and refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/tool/plan_file.h"
#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MixtureTool : public PlanTool {
 protected:
  // Two lists, the first of 40 samples of 10 to 49 tokens, the second of five long ones.
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
            {"ranges",
             {{{"first_step", 0}, {"weights", {3, 1}}, {"longest", 50}},
              {{"first_step", 10}, {"weights", {1, 1}}},
              {{"first_step", 25}, {"weights", {1, 0}}}}},
            {"steps", 30}};
  }
  std::string file(const nlohmann::json& mixture) const { return write("mixture.json", mixture.dump()); }

  // The printed numbers of a plan of this mixture.
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

  void expect_refused_plan(const std::vector<nlohmann::json>& lines, const std::string& why) const {
    expect_refused(text_of(lines), file(mixture()), AllOf(HasSubstr("plan.jsonl"), HasSubstr(why)),
                   "--mixture");
  }
};

TEST_F(MixtureTool, MakesAPlanThatCheckAcceptsAndStatsDescribeAlike) {
  for (const char* too_long : {"refuse", "split", "truncate", "skip"}) {
    for (const char* seed : {"0", "1", "2"}) {
      // Of the books, all but one are longer than this cap.
      const std::string cap = too_long == std::string("refuse") ? "100" : "65";
      nlohmann::json made = make_mixture(mixture(), cap, {"--too-long", too_long, "--seed", seed});
      const std::string what = fmt::format("{}, seed {}", too_long, seed);
      EXPECT_EQ(made["steps"], 30) << what;
      EXPECT_EQ(made["minimum_steps"], 30) << what;
      EXPECT_EQ(made["dropped"], 0) << what;
      EXPECT_EQ(made["duplicated"], 0) << what;
      EXPECT_GT(made["step_tokens_mean"], 0.8) << what;
      const ProcessResult checked = tool({"check", plan(), "--mixture", file(mixture()), "--json"});
      ASSERT_EQ(checked.exit_code, 0) << what << ": " << checked.error;
      const auto told = nlohmann::json::parse(checked.output);
      EXPECT_NEAR(told["imbalance_cost"].get<double>(), made["imbalance_cost"].get<double>(), 1e-9);
      EXPECT_EQ(told["left"], made["left"]);
      for (const char* key : {"seconds", "left", "over_long"}) made.erase(key);
      EXPECT_EQ(nlohmann::json::parse(tool({"stats", plan(), "--mixture", file(mixture()), "--json"}).output),
                made)
          << what;
    }
  }
}

TEST_F(MixtureTool, ThePlanFileHasTheStepsOfAnyPlanAndTheMixtureBeside) {
  make_mixture(mixture());
  const auto lines = lines_of(read_text_file(plan()));
  ASSERT_EQ(lines.size(), 31U);
  EXPECT_EQ(lines[0]["samples"], 45);
  EXPECT_EQ(lines[0].size(), 10U);
  const nlohmann::json& planned = lines[0]["mixture"];
  EXPECT_EQ(planned["parts"][1]["name"], "books");
  EXPECT_EQ(planned["parts"][1]["samples"], 5);
  EXPECT_EQ(planned["ranges"], mixture()["ranges"]);
  EXPECT_EQ(planned["steps"], 30);
  // Counted by hand: every data set is gone through so often, and so far.
  std::map<std::size_t, std::map<int, std::uint64_t>> times;  // by sample, by epoch
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i - 1);
    const auto batches = lines[i]["ranks"].flatten();
    const auto epochs = lines[i].contains("epochs") ? lines[i]["epochs"].flatten() : nlohmann::json();
    for (const auto& [place, sample] : batches.items()) {
      if (!sample.is_number()) continue;  // an empty micro-batch
      ++times[sample.get<std::size_t>()][epochs.is_null() ? 0 : epochs[place].get<int>()];
    }
  }
  for (const nlohmann::json& left : planned["left"]) ++times[left[0].get<std::size_t>()][left[2].get<int>()];
  std::vector<std::uint64_t> drawn(2, 0);
  for (const auto& [sample, by_epoch] : times) {
    for (const auto& [epoch, count] : by_epoch) {
      EXPECT_EQ(count, 1U) << "sample " << sample << ", epoch " << epoch;
      ++drawn[sample < 40 ? 0 : 1];
    }
  }
  EXPECT_EQ(drawn[0], planned["parts"][0]["drawn"]);
  EXPECT_EQ(drawn[1], planned["parts"][1]["drawn"]);
  EXPECT_GT(drawn[1], 10U) << "the books are read more than twice";
}

TEST_F(MixtureTool, APlanIsTheSameWhenItIsReadAndWrittenAgain) {
  make_mixture(mixture(), "65", {"--too-long", "split"});
  const std::string text = read_text_file(plan());
  EXPECT_THAT(text, HasSubstr("\"epochs\""));
  EXPECT_THAT(text, HasSubstr(",1]"));
  write_plan(read_plan(plan()), plan());
  EXPECT_EQ(read_text_file(plan()), text);
}

TEST_F(MixtureTool, ManyEpochsOfATinyPartAreCountedToo) {
  nlohmann::json many = mixture();
  many["steps"] = 2000;  // the books come more than 256 times
  const nlohmann::json made = make_mixture(many);
  EXPECT_EQ(made["dropped"], 0);
  EXPECT_EQ(made["duplicated"], 0);
  const auto header = lines_of(read_text_file(plan()))[0];
  EXPECT_GT(header["mixture"]["parts"][0]["drawn"], 256 * 40);
  const ProcessResult checked = tool({"check", plan(), "--mixture", file(many)});
  EXPECT_EQ(checked.exit_code, 0) << checked.error;
}

TEST_F(MixtureTool, CheckFindsWhatIsWrongWithAPlan) {
  make_mixture(mixture());
  const std::vector<nlohmann::json> good = lines_of(read_text_file(plan()));
  const auto with = [&](const std::function<void(std::vector<nlohmann::json>&)>& damage) {
    std::vector<nlohmann::json> lines = good;
    damage(lines);
    return lines;
  };
  // A micro-batch with two samples or more, of the steps without books.
  std::size_t step = 30;
  std::string place;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t m = 0; m < good[step]["ranks"][static_cast<std::size_t>(rank)].size(); ++m) {
      const std::string here = fmt::format("/{}/{}", rank, m);
      if (good[step][nlohmann::json::json_pointer("/ranks" + here)].size() >= 2) place = here;
    }
  }
  ASSERT_FALSE(place.empty());
  const nlohmann::json::json_pointer batch("/ranks" + place);
  const nlohmann::json::json_pointer epochs("/epochs" + place);
  expect_refused_plan(with([&](auto& lines) {
                        lines[step][batch].erase(0);
                        lines[step][epochs].erase(0);
                      }),
                      "'web'");
  expect_refused_plan(with([&](auto& lines) {
                        lines[step][batch][1] = lines[step][batch][0];
                        lines[step][epochs][1] = lines[step][epochs][0];
                      }),
                      "'web'");
  expect_refused_plan(with([&](auto& lines) { lines[step][batch][0] = 41; }),
                      "step 29 has sample 41 of 'books', whose weight is 0 there");
  expect_refused_plan(with([&](auto& lines) { lines[step][epochs][0] = 77; }), "'web'");
  expect_refused_plan(with([&](auto& lines) { lines[step][epochs].erase(0); }), "epochs, not");
  expect_refused_plan(with([&](auto& lines) { lines[step]["epochs"][0].push_back(nlohmann::json::array()); }),
                      "has more epochs than micro-batches");
  expect_refused_plan(with([&](auto& lines) { lines.pop_back(); }), "29 steps of the mixture's 30");
  expect_refused_plan(with([&](auto& lines) { lines[0]["mixture"]["parts"][1]["drawn"] = 5; }), "books");
  expect_refused_plan(with([&](auto& lines) {
                        auto& drawn = lines[0]["mixture"]["parts"][0]["drawn"];
                        drawn = drawn.template get<int>() + 1;
                      }),
                      "samples of 'web' are in epoch");
  expect_refused_plan(with([&](auto& lines) {
                        lines[0]["mixture"]["left"].push_back({3, 0, 0});
                      }),
                      "sample 3");
  expect_refused_plan(with([&](auto& lines) {
                        lines[0]["mixture"]["left"].push_back({3, 0});
                      }),
                      "\"left\" has [3,0], not [sample, piece, epoch]");
  expect_refused_plan(with([&](auto& lines) {
                        lines[0]["mixture"]["ranges"][1]["weights"] = {2, 1};
                      }),
                      "of another mixture");
  expect_refused_plan(with([&](auto& lines) { lines[0]["mixture"]["parts"][0]["samples"] = 39; }),
                      "44 samples together, the data 45");
  expect_refused_plan(with([&](auto& lines) { lines[0].erase("mixture"); }), "");
}

TEST_F(MixtureTool, CheckHoldsEachRangeToItsLongestSample) {
  make_mixture(mixture(), "95");
  std::vector<nlohmann::json> lines = lines_of(read_text_file(plan()));
  // Cut to 50 tokens, samples fit that do not as they are.
  lines[0]["mixture"]["ranges"][0].erase("longest");
  nlohmann::json uncut = mixture();
  uncut["ranges"][0].erase("longest");
  expect_refused(text_of(lines), file(uncut), HasSubstr("over the cap of 95"), "--mixture");
}

TEST_F(MixtureTool, WhatIsWrongWithTheFileIsSaidInALine) {
  const auto refused = [&](const std::function<void(nlohmann::json&)>& damage, const std::string& why) {
    nlohmann::json damaged = mixture();
    damage(damaged);
    const ProcessResult result = tool({"make", "--mixture", file(damaged), "--ranks", "2", "--cap", "100"});
    EXPECT_EQ(result.exit_code, 1) << why;
    EXPECT_THAT(result.error, AllOf(HasSubstr("mixture.json: "), HasSubstr(why)));
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  };
  refused([](auto& m) { m = 3; }, "3 is not an object");
  refused([](auto& m) { m.erase("steps"); }, "there is no \"steps\"");
  refused([](auto& m) { m["steps"] = -1; }, "\"steps\" is -1, not a whole number from 0 on");
  refused([](auto& m) { m["steps"] = 0; }, "needs a number of steps");
  refused([](auto& m) { m["seed"] = 1; }, "\"seed\" is not known");
  refused([](auto& m) { m["parts"] = "web"; }, "\"parts\" is \"web\", not a list");
  refused([](auto& m) { m["parts"][0].erase("name"); }, "there is no \"name\"");
  refused([](auto& m) { m["parts"][0].erase("lengths"); }, "needs one source of lengths");
  refused([](auto& m) { m["parts"][0]["packed"] = {"x"}; }, "needs one source of lengths");
  refused([](auto& m) { m["parts"][0]["lengths"] = "none.csv"; }, "none.csv");
  refused([](auto& m) { m["parts"][0] = {{"name", "h"}, {"histogram", "web.csv"}}; }, "no \"samples\"");
  refused([](auto& m) { m["parts"][0] = {{"name", "p"}, {"packed", {1}}}; }, "\"packed\" is 1, not a string");
  refused([](auto& m) { m["ranges"][1]["weights"] = {1}; }, "1 weights for 2 data sets");
  refused([](auto& m) { m["ranges"][1]["weights"] = {1, "a"}; }, "\"weights\" is \"a\", not a number");
  refused([](auto& m) { m["ranges"][1]["first"] = 7; }, "\"first\" is not known");
  const ProcessResult no_json =
      tool({"make", "--mixture", write("mixture.json", "{"), "--ranks", "2", "--cap", "100"});
  EXPECT_THAT(no_json.error, HasSubstr("mixture.json: not JSON"));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--epoch", "1"}, {"--tail", "drop"}, {"--lengths", "x.csv"}}) {
    std::vector<std::string> words = {"make", "--mixture", file(mixture()), "--ranks", "2", "--cap", "100"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(tool(words).exit_code, 2) << more[0];
  }
}

TEST_F(MixtureTool, PartsMayBeHistogramsAndTheFileTellsWhereTheyLie) {
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
