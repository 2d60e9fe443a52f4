// A line for the report about the load of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "runtime/train/checkpoint/reader.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

class LoadLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("LOCKSTEP_REPORT_DIR", folder_.path().c_str(), 1);
    ::setenv("SLURM_JOB_ID", "7", 1);
  }
  void TearDown() override {
    ::unsetenv("LOCKSTEP_REPORT_DIR");
    ::unsetenv("SLURM_JOB_ID");
  }
  testing::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "restarts-7.jsonl";
};

TEST_F(LoadLogTest, ALineIsAddedToTheFileOfLockstepRun) {
  write_file_atomically(file_, "{\"start\":0}\n");
  LoadLog().write(12);
  const std::string text = read_text_file(file_);
  ASSERT_TRUE(text.starts_with("{\"start\":0}\n")) << text;
  const auto line = nlohmann::json::parse(text.substr(text.find('\n')));
  EXPECT_EQ(line["loaded"], 12);
  EXPECT_GE(line["seconds"], 0);
  EXPECT_LT(line["seconds"], 60);
  EXPECT_GT(line["at"], 1e9);
}

TEST_F(LoadLogTest, WithoutLockstepRunNothingIsWritten) {
  LoadLog().write(12);
  EXPECT_FALSE(std::filesystem::exists(file_));
  ::unsetenv("SLURM_JOB_ID");
  write_file_atomically(file_, "");
  LoadLog().write(12);
  EXPECT_EQ(read_text_file(file_), "");
}

TEST_F(LoadLogTest, AFileThatCannotBeWrittenCostsALine) {
  std::filesystem::create_symlink("/dev/full", file_);
  ::testing::internal::CaptureStderr();
  LoadLog().write(12);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("lockstep: the report will lack a load: "));
  EXPECT_THAT(said, HasSubstr("restarts-7.jsonl"));
}

}  // namespace
}  // namespace lockstep::checkpoint
