// Lists of lengths and histograms as lockstep-plan reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "tests/unit/runtime/data/plan/tool/plan_tool.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(PlanTool, NamesTheFileAndLineOfABadRow) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"length\n5\n0\n", ":3: the length must be in 1..4294967295, not 0"},
      {"length\n-4\n", ":2: the length must be in 1..4294967295, not -4"},
      {"# c\nlength\n5\nfive\n", ":4: the value of column 'length' is not a whole number: 'five'"},
      {"length\n#5\n5\n", ":2: the value of column 'length' is not a whole number: '#5'"},
      {"length\n5.5\n", ":2: the value of column 'length' is not a whole number: '5.5'"},
      {"a,length\n1,5\n7\n", ":3: the row has 1 fields, but the header has 2"},
      {"length\n7\n\"5\n", ":3: a quote in this row is not closed"},
      {"id,length\n\"a\" b,5\n", ":2: there is text after a quoted field"},
      {"id,length\n\"a\nb\",5\nc,nan\n", ":4: the value of column 'length' is not a whole number: 'nan'"},
      {"length\n.0\n", ":2: the value of column 'length' is not a whole number: '.0'"},
      {"length\n99999999999\n", ":2: the length must be in 1..4294967295, not 99999999999"},
      {"# only a comment\n", "there is no header line"},
      {"# c\nlength,a,length\n5,1,6\n", ":2: two columns are named 'length'"},
      {"# c\nlength\n", ":2: there is no row after the header"},
      {"length\n5\n\n \r\n6\n", ":3: there is a blank line before the last row"},
      {"length\n\n5\n", ":2: there is a blank line before the last row"}};
  for (const auto& [content, why] : cases) {
    const ProcessResult result =
        tool({"make", "--lengths", write("bad.csv", content), "--ranks", "1", "--cap", "10"});
    EXPECT_EQ(result.exit_code, 1) << content;
    EXPECT_THAT(result.error, AllOf(HasSubstr("bad.csv"), HasSubstr(why)));
  }
}

TEST_F(PlanTool, AcceptsBlankLinesAtBothEndsAndOtherColumnsWithEqualNames) {
  const std::string csv = write("list.csv", "\n# c\n\na,length,a\n1,7,2\n# c\n1,8,2\n\n \r\n\n");
  const ProcessResult result = tool({"stats", "--lengths", csv, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["samples"], 2);
}

TEST_F(PlanTool, ReadsListsFromSpreadsheets) {
  const ProcessResult result = tool(
      {"stats", "--lengths", write("bom.csv", "\xef\xbb\xbf\"id\",\"length\"\r\n\"a\",\"7\"\r\n"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["longest"], 7);
}

TEST_F(PlanTool, ReadsQuotedFieldsAndNumbersAsPandasWritesThem) {
  const std::string csv = write(
      "q.csv",
      "name,length,note\r\n\"a, \"\"b\"\"\",512.0,\"two\r\nlines\"\r\n \"c\" , \"7.\" ,\r\n#d,9.00,\"\"");
  const auto stats = nlohmann::json::parse(tool({"stats", "--lengths", csv, "--json"}).output);
  EXPECT_EQ(stats["samples"], 3);
  EXPECT_EQ(stats["tokens"], 512 + 7 + 9);
}

TEST_F(PlanTool, ShowsOnlyAFewPrintableCharactersOfAFileThatIsNotAList) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"length\n" + std::string(100'000, '9') + "\n", ":2: the value of column 'length'"},
      {std::string(100'000, 'x') + "\n", "there is no column 'length'"},
      {"a\x1b[2J,b\n", R"(a\x1b[2J, b)"},
      {std::string(100'000, ',') + "\n", "there is no column 'length'"}};
  for (const auto& [content, why] : cases) {
    const ProcessResult result =
        tool({"make", "--lengths", write("bad.csv", content), "--ranks", "1", "--cap", "10"});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.error, HasSubstr(why));
    EXPECT_LT(result.error.size(), 300U);
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1);
  }
}

TEST_F(PlanTool, RefusesTokensThatAreNotIntegersByTheirType) {
  for (const auto& [pack, type] : {std::pair{"float32", "f32"}, {"float64", "f64"}}) {
    const ProcessResult result =
        tool({"stats", std::string(LOCKSTEP_FORMAT_VECTORS "/megatron/") + pack + ".idx"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.error, AllOf(HasSubstr(pack), HasSubstr(type), HasSubstr("must be integers")));
  }
}

TEST_F(PlanTool, NamesTheExistingColumns) {
  const ProcessResult result =
      tool({"make", "--lengths", lengths(), "--column", "tokens", "--ranks", "1", "--cap", "100"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("'tokens'"), HasSubstr("a, b, length")));
}

TEST_F(PlanTool, AHistogramIsSpreadExactly) {
  const std::string csv = write("h.csv", "# note\nlength,count\n1,1\n2,2\n3,0\n4,1\n");
  const auto stats =
      nlohmann::json::parse(tool({"stats", "--histogram", csv, "--samples", "8", "--json"}).output);
  EXPECT_EQ(stats["samples"], 8);
  EXPECT_EQ(stats["tokens"], 2 * 1 + 4 * 2 + 2 * 4);
  const auto uneven =
      nlohmann::json::parse(tool({"stats", "--histogram", csv, "--samples", "9", "--json"}).output);
  EXPECT_EQ(uneven["samples"], 9);
}

}  // namespace
}  // namespace lockstep::data
