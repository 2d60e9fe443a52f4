// A fixture with a folder in which a test runs lockstep-plan.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"

namespace lockstep::data {

class PlanTool : public testing::Test {
 protected:
  PlanTool()
      : folder_(testing::TempDir() + "plan_tool_" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~PlanTool() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    write_file_atomically(folder_ / name, content);
    return (folder_ / name).string();
  }

  // Writes a list of thirty samples, with a comment, three columns and CRLF.
  std::string lengths() const {
    std::string text = "# synthetic\na,b,length\r\n";
    for (int i = 0; i < 30; ++i) text += "1,x," + std::to_string(10 + i) + "\r\n";
    return write("lengths.csv", text);
  }

  static ProcessResult tool(std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_PLAN);
    return run_process(words);
  }

  // Makes a plan and returns its text.
  std::string make(const std::string& csv, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"make", "--lengths",    csv, "--ranks", "2",   "--cap",
                                      "100",  "--accumulate", "2", "--out",   plan()};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = tool(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return read_text_file(plan());
  }
  std::string plan() const { return (folder_ / "plan.jsonl").string(); }

  std::filesystem::path folder_;
};

inline std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace lockstep::data
