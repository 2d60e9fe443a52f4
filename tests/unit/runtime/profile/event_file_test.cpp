// Event files for TensorBoard. tests/peers/tensorboard_test.py runs these tests with LOCKSTEP_TEST_EVENTS, a folder
// that stays, and reads the file with TensorBoard.
#include "runtime/profile/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <cstring>
#include <filesystem>

#include "common/crc32c.h"
#include "common/environment.h"
#include "common/files.h"
#include "runtime/profile/step_timer.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EventFileTest : public ::testing::Test {
 protected:
  ~EventFileTest() override { ::unsetenv("LOCKSTEP_TENSORBOARD"); }

  std::filesystem::path folder() const {
    return environment::get_or("LOCKSTEP_TEST_EVENTS", (temporary_ / "events").string());
  }

  void train(int rank) const {
    ::setenv("LOCKSTEP_TENSORBOARD", folder().c_str(), 1);
    StepTimer timer({.rank = rank, .size = 2, .node = "n1"}, {.record = false, .folder = {}});
    for (int step = 1; step <= 300; ++step) {
      { const auto scope = timer.phase(Phase::forward); }
      timer.add_scalar("loss", 1.0 / step);
      timer.end_step({.tokens = 1000});
    }
  }

  std::vector<std::filesystem::path> files() const {
    if (!std::filesystem::exists(folder())) return {};
    const std::filesystem::directory_iterator entries(folder());
    return {begin(entries), end(entries)};
  }

  lockstep::testing::TemporaryFolder temporary_;
};

template <typename T>
T number_at(const std::string& bytes, std::size_t offset) {
  T number{};
  std::memcpy(&number, bytes.data() + offset, sizeof(T));
  return number;
}

std::uint32_t checksum_of(const std::string& bytes, std::size_t offset, std::size_t size) {
  return masked_crc32c(crc32c(std::as_bytes(std::span(bytes).subspan(offset, size))));
}

TEST_F(EventFileTest, HasARecordForEachStep) {
  train(0);
  ASSERT_THAT(files(), SizeIs(1));
  EXPECT_THAT(files()[0].filename().string(), HasSubstr("events.out.tfevents."));
  const std::string bytes = read_text_file(files()[0]);
  std::vector<std::string> records;
  for (std::size_t offset = 0; offset < bytes.size();) {
    ASSERT_LE(offset + 12, bytes.size());
    const auto size = number_at<std::uint64_t>(bytes, offset);
    ASSERT_LE(offset + 16 + size, bytes.size());
    EXPECT_EQ(number_at<std::uint32_t>(bytes, offset + 8), checksum_of(bytes, offset, 8));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, offset + 12 + size), checksum_of(bytes, offset + 12, size));
    records.push_back(bytes.substr(offset + 12, size));
    offset += 16 + size;
  }
  ASSERT_THAT(records, SizeIs(301));
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  for (const char* name :
       {"loss", "rank_0/step_ms", "rank_0/forward_ms", "rank_0/other_ms", "rank_0/tokens_per_second"})
    EXPECT_THAT(records[300], HasSubstr(name));
}

TEST_F(EventFileTest, IsWrittenByTheFirstRankOnly) {
  if (environment::get("LOCKSTEP_TEST_EVENTS")) GTEST_SKIP() << "the folder has the file of the other test";
  train(1);
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(EventFileTest, ThatCannotBeWrittenStopsNoTraining) {
  if (environment::get("LOCKSTEP_TEST_EVENTS")) GTEST_SKIP() << "the folder has the file of the other test";
  write_file_atomically(folder(), "in its place");
  ::testing::internal::CaptureStderr();
  train(0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("writes no event file to LOCKSTEP_TENSORBOARD: "));
}

}  // namespace
}  // namespace lockstep::profile
