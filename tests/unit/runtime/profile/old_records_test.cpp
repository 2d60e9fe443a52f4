#include "runtime/profile/old_records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>

#include "common/files.h"
#include "exporters/record/layout.h"
#include "runtime/profile/step_timer.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;
using record::Identity;

class OldRecords : public ::testing::Test {
 protected:
  OldRecords() {
    for (const char* name : {"LOCKSTEP_RECORD", "LOCKSTEP_REPORT_DIR", "LOCKSTEP_METRICS"}) ::unsetenv(name);
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  fs::path records() const { return folder_ / "lockstep/records"; }
  fs::path folder_of(std::uint64_t job) const { return records() / fmt::format("{}.1", job); }

  static std::unique_ptr<StepTimer> start(std::uint64_t job, int rank = 1) {
    return std::make_unique<StepTimer>(
        Identity{.job_id = job, .step_id = 1, .rank = rank, .size = 4, .local_rank = rank, .node = "n1"});
  }

  // Sets one of the times in a record, or the time of a folder, to two hours ago.
  static void set_back(const fs::path& record, std::size_t offset) {
    const std::int64_t then =
        std::chrono::nanoseconds(
            (std::chrono::system_clock::now() - std::chrono::hours(2)).time_since_epoch())
            .count();
    const UniqueFd fd = open_file(record, O_WRONLY);
    ASSERT_EQ(::pwrite(fd.get(), &then, sizeof then, static_cast<off_t>(offset)), sizeof then);
  }
  static void set_back(const fs::path& folder) {
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  static constexpr std::size_t kStart =
      offsetof(record::File, header) + offsetof(record::Header, start_unix_ns);
  static constexpr std::size_t kEnd = offsetof(record::File, live) + offsetof(record::Live, finished_unix_ns);

  // The record of a job that ended two hours ago.
  fs::path record_of_ended_job(std::uint64_t job, int rank = 1) {
    start(job, rank).reset();
    const fs::path record = folder_of(job) / fmt::format("rank-{:06}.record", rank);
    set_back(record, kStart);
    set_back(record, kEnd);
    set_back(folder_of(job));
    return record;
  }

  lockstep::testing::TemporaryFolder folder_;
};

TEST_F(OldRecords, OfAJobThatEndedLongAgoAreRemovedByTheFirstRankOfTheNextJob) {
  record_of_ended_job(10);
  write_file_atomically(folder_of(10) / ".rank-000002.record.XcVbNm", "of a rank that was killed meanwhile");
  for (const char* name : {"trace.json", "operators.txt", "trace-000000-000001.part"})
    write_file_atomically(folder_of(10) / name, "of a profile");
  set_back(folder_of(10));
  const auto second_rank = start(20, 1);
  EXPECT_TRUE(fs::exists(folder_of(10)));
  const auto first_rank = start(21, 0);
  EXPECT_FALSE(fs::exists(folder_of(10)));
}

TEST_F(OldRecords, StayIfAnyRankMayRunOrEndedJustNow) {
  record_of_ended_job(10);
  start(10, 2).reset();  // its end is now
  set_back(folder_of(10) / "rank-000002.record", kStart);
  start(11).reset();
  const auto running = start(12);
  set_back(folder_of(12) / "rank-000001.record", kStart);
  for (const int job : {10, 11, 12}) set_back(folder_of(job));
  record_of_ended_job(13);
  write_file_atomically(folder_of(13) / "rank-000009.record", "of another version");
  set_back(folder_of(13));
  record_of_ended_job(14);
  write_file_atomically(folder_of(14) / "rank-000001.record",
                        read_text_file(folder_of(14) / "rank-000001.record"));
  remove_old_records(records(), "");
  for (const int job : {10, 11, 12, 13, 14})
    EXPECT_TRUE(fs::exists(folder_of(job) / "rank-000001.record")) << job;
}

TEST_F(OldRecords, OfTheStartingJobStayEvenIfAnOlderJobHadItsNumber) {
  const fs::path other_rank = record_of_ended_job(10);
  const auto first_rank = start(10, 0);
  EXPECT_TRUE(fs::exists(other_rank));
}

TEST_F(OldRecords, StayInFoldersWithOtherFiles) {
  for (const char* name : {"notes", "10.1", "10.x", "10"}) {
    fs::create_directories(records() / name / "sub");
    write_file_atomically(records() / name / "sub/text", "mine");
    set_back(records() / name);
  }
  record_of_ended_job(12);
  fs::rename(folder_of(12), records() / "kept");
  record_of_ended_job(11);
  write_file_atomically(folder_of(11) / "notes.txt", "mine");
  set_back(folder_of(11));
  remove_old_records(records(), "");
  for (const char* name : {"notes", "10.1", "10.x", "10"})
    EXPECT_TRUE(fs::exists(records() / name / "sub/text")) << name;
  EXPECT_TRUE(fs::exists(records() / "kept/rank-000001.record"));
  EXPECT_TRUE(fs::exists(folder_of(11) / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder_of(11) / "rank-000001.record"));
}

TEST_F(OldRecords, ReachedThroughALinkStay) {
  record_of_ended_job(10);
  fs::rename(records(), folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", records());
  remove_old_records(records(), "");
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere/10.1/rank-000001.record"));

  fs::remove(records());
  fs::create_directory(records());
  fs::create_directory_symlink(folder_ / "elsewhere/10.1", records() / "10.1");
  remove_old_records(records(), "");
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere/10.1/rank-000001.record"));
}

TEST_F(OldRecords, OfAnotherUserStay) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const fs::path record = record_of_ended_job(10);
  ASSERT_EQ(::chown(folder_of(10).c_str(), 12345, 12345), 0);
  remove_old_records(records(), "");
  EXPECT_TRUE(fs::exists(record));
  ASSERT_EQ(::chown(folder_of(10).c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(records().c_str(), 12345, 12345), 0);
  remove_old_records(records(), "");
  EXPECT_TRUE(fs::exists(record));
  ASSERT_EQ(::chown(records().c_str(), 0, 0), 0);
  remove_old_records(records(), "");
  EXPECT_FALSE(fs::exists(record));
}

}  // namespace
}  // namespace lockstep::profile
