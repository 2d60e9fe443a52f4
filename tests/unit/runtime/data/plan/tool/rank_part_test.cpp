// lockstep-plan make --rank: one rank's part of a plan, as training programs in other languages read it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RankPartTool : public PlanTool {
 protected:
  static constexpr int kSamples = 500;

  std::string numbers(const std::string& name, std::uint32_t factor) const {
    std::vector<std::uint32_t> values;
    for (std::uint32_t i = 0; i < kSamples; ++i) values.push_back((10 + i * 7919 % 90) * factor);
    return write(name,
                 std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]));
  }

  static std::vector<std::string> words(const std::string& file, int ranks,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {"make",  "--lengths-u32", file,     "--ranks", std::to_string(ranks),
                                    "--cap", "100",           "--cost", "20,1",    "--seed",
                                    "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // The lines after the header, each a step.
  static std::vector<json> part(const std::string& file, int ranks, int rank,
                                std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--rank", std::to_string(rank)});
    const ProcessResult result = tool(words(file, ranks, more));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    auto lines = lines_of(result.output);
    EXPECT_EQ(lines.at(0)["rank"], rank);
    lines.erase(lines.begin());
    return lines;
  }

  static void count(const std::vector<json>& steps, std::size_t end, std::vector<int>& seen) {
    for (std::size_t i = 0; i < std::min(end, steps.size()); ++i) {
      for (const auto& batch : steps[i]["batches"]) {
        for (const std::size_t sample : batch) ++seen.at(sample);
      }
    }
  }
};

TEST_F(RankPartTool, TheRanksPartsAreThePlan) {
  const std::string file = numbers("lengths", 1);
  const ProcessResult whole = tool(words(file, 3, {"--accumulate", "2", "--out", plan()}));
  ASSERT_EQ(whole.exit_code, 0) << whole.error;
  const auto steps = lines_of(read_text_file(plan()));
  for (int rank = 0; rank < 3; ++rank) {
    const auto mine = part(file, 3, rank, {"--accumulate", "2"});
    ASSERT_EQ(mine.size() + 1, steps.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i]["step"], i);
      EXPECT_EQ(mine[i]["batches"], steps[i + 1]["ranks"][static_cast<std::size_t>(rank)]);
      EXPECT_LE(mine[i]["rank_tokens"], mine[i]["tokens"]);
      EXPECT_EQ(mine[i]["loss_tokens"], mine[i]["tokens"]);
    }
  }
}

TEST_F(RankPartTool, ContinuesOnOtherRanksAndUsesEverySampleOnce) {
  const std::string file = numbers("lengths", 1);
  std::vector<int> seen(kSamples, 0);
  const std::vector<std::string> pinned = {"--step-tokens", "570", "--stretch", "1.5"};
  const std::size_t done = 7;
  for (int rank = 0; rank < 2; ++rank) count(part(file, 2, rank, pinned), done, seen);
  const auto first = part(file, 2, 0, pinned);
  std::vector<std::string> more = pinned;
  more.insert(more.end(), {"--from", first[done - 1]["state"].dump()});
  for (int rank = 0; rank < 3; ++rank) {
    const auto rest = part(file, 3, rank, more);
    EXPECT_EQ(rest.at(0)["step"], done);
    count(rest, rest.size(), seen);
  }
  EXPECT_EQ(seen, std::vector<int>(kSamples, 1));
}

TEST_F(RankPartTool, AnEmptyPartNamesTheShortestSample) {
  const std::string file = write("three", std::string("\x05\0\0\0\x07\0\0\0\x06\0\0\0", 12));
  int empty = 0;
  for (int rank = 0; rank < 5; ++rank) {
    const auto steps = part(file, 5, rank);
    ASSERT_EQ(steps.size(), 1U);
    EXPECT_EQ(steps[0].contains("shortest"), steps[0]["batches"].empty());
    if (steps[0]["batches"].empty()) {
      ++empty;
      EXPECT_EQ(steps[0]["shortest"], 0);
    }
    // Equal numbers of micro-batches: the empty one is in the list.
    const auto equal = part(file, 5, rank, {"--equal-micro-batches"});
    EXPECT_EQ(equal[0]["batches"].size(), 1U);
    EXPECT_EQ(equal[0].contains("shortest"), equal[0]["batches"][0].empty());
  }
  EXPECT_EQ(empty, 2);
}

TEST_F(RankPartTool, SumsTheTokensThatCountInTheLoss) {
  const auto steps = part(numbers("lengths", 1), 2, 1, {"--loss-tokens", numbers("loss", 2)});
  ASSERT_FALSE(steps.empty());
  for (const auto& step : steps) EXPECT_EQ(step["loss_tokens"], 2 * step["tokens"].get<int>());
}

TEST_F(RankPartTool, RefusesWhatItCannotPrint) {
  const std::string file = numbers("lengths", 1);
  const auto refused = [&](const std::vector<std::string>& more, int code, const std::string& what) {
    const ProcessResult result = tool(words(file, 2, more));
    EXPECT_EQ(result.exit_code, code) << what;
    EXPECT_THAT(result.error, HasSubstr(what));
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  };
  refused({"--rank", "2"}, 2, "--rank must be below --ranks 2, not 2");
  refused({"--rank", "0", "--out", plan()}, 2, "leave out --out");
  refused({"--rank", "0", "--too-long", "split"}, 2, "--too-long split");
  refused({"--rank", "0", "--from", "nothing"}, 2, "--from must be the \"state\"");
  refused({"--rank", "0", "--loss-tokens", write("short", "abcd")}, 2, "1 numbers for 500 samples");
  refused({"--rank", "0", "--loss-tokens", write("odd", "abcde")}, 1, "5 bytes");
  const std::string state = part(file, 2, 0)[0]["state"].dump();
  refused({"--rank", "0", "--epoch", "1", "--from", state}, 1, "another order of samples");
}

}  // namespace
}  // namespace lockstep::data
