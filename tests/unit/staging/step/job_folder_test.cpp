#include "staging/step/job_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/error.h"
#include "staging/rendezvous/node_names.h"
#include "staging/step/step_report.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class JobsFolder : public testing::Test {
 protected:
  JobsFolder() {
    fs::create_directories(store_ / "objects/a/files");
    write_file_atomically(store_ / "objects/a/files/index.lockstep", "index");
    write_file_atomically(store_ / "objects/a/files/s.tar", "shard");
  }
  PutResult folder_result(const std::string& source) const {
    PutResult result;
    result.source = source;
    result.path = store_ / "objects/a/files";
    result.bytes = 10;
    return result;
  }
  PutResult shard_result(const std::string& source) const {
    PutResult result = folder_result(source);
    result.path /= "s.tar";
    return result;
  }
  fs::path data(const std::string& name) const { return store_ / "jobs/5/data" / name; }

  lockstep::testing::TemporaryFolder temporary_;
  fs::path store_ = temporary_.path();
};

TEST_F(JobsFolder, HoldsHardLinksUnderTheSourcesName) {
  JobFolder(store_, 5).add({folder_result("/mnt/man")});
  EXPECT_TRUE(fs::equivalent(data("man/s.tar"), store_ / "objects/a/files/s.tar"));
  EXPECT_FALSE(fs::is_symlink(data("man/s.tar")));
  EXPECT_TRUE(fs::exists(data("man/index.lockstep")));
}

TEST_F(JobsFolder, ASingleShardHasItsIndexBesideIt) {
  JobFolder(store_, 5).add({shard_result("/mnt/man/s.tar")});
  EXPECT_TRUE(fs::exists(data("s.tar")));
  EXPECT_TRUE(fs::exists(data("index.lockstep")));
}

TEST_F(JobsFolder, APatternIsAFolderEvenIfItMatchesOneShard) {
  JobFolder(store_, 5).add({shard_result("/mnt/man/s*.tar")});
  EXPECT_TRUE(fs::exists(data("man/s.tar")));
  EXPECT_TRUE(fs::exists(data("man/index.lockstep")));
}

TEST_F(JobsFolder, TheNextStepFindsStagedSources) {
  { JobFolder(store_, 5).add({folder_result("/mnt/man")}); }
  const JobFolder next(store_, 5);
  EXPECT_THAT(next.missing({"/mnt/man", "/mnt/other"}), ElementsAre("/mnt/other"));
  ASSERT_EQ(next.staged({"/mnt/man"}).size(), 1U);
  EXPECT_EQ(next.staged({"/mnt/man"}).front().bytes, 10U);
  EXPECT_THAT(JobFolder(store_, 6).missing({"/mnt/man"}), ElementsAre("/mnt/man"));
}

TEST_F(JobsFolder, AddingTwiceChangesNothing) {
  JobFolder folder(store_, 5);
  folder.add({folder_result("/mnt/man")});
  folder.add({folder_result("/mnt/man")});
  EXPECT_EQ(std::distance(fs::directory_iterator(data("man")), fs::directory_iterator()), 2);
}

TEST_F(JobsFolder, TwoSourcesOfOneNameAreRefusedEvenInDifferentSteps) {
  { JobFolder(store_, 5).add({folder_result("/mnt/man")}); }
  const JobFolder next(store_, 5);
  EXPECT_NO_THROW(next.check_names({"/mnt/man", "/mnt/other"}));
  EXPECT_THAT([&] { next.check_names({"/scratch/man"}); },
              testing::ThrowsMessage<Error>(HasSubstr("$LOCKSTEP_DATA/man")));
}

// A task may stand in the folder, or read its entries slowly.
TEST_F(JobsFolder, AnExpandedFolderIsFilledInPlace) {
  fs::create_directory(store_ / "src");
  write_file_atomically(store_ / "src/index.lockstep", "index");
  write_file_atomically(store_ / "src/s.tar", "shard");
  const std::string source = (store_ / "src").string();
  JobFolder folder(store_, 5);
  folder.point_at(SourceLinks::of(source));
  folder.expand_folder_link(resolve_source(source), {"index.lockstep", "s.tar"});
  const UniqueFd task = open_file(data("src"), O_RDONLY | O_DIRECTORY);
  folder.replace_file(source, "s.tar", store_ / "objects/a/files/s.tar");
  folder.add({folder_result(source)});
  for (const char* name : {"index.lockstep", "s.tar"}) {
    struct stat in_folder {};
    struct stat copy {};
    ASSERT_EQ(::fstatat(task.get(), name, &in_folder, AT_SYMLINK_NOFOLLOW), 0) << name;
    ASSERT_EQ(::stat((store_ / "objects/a/files" / name).c_str(), &copy), 0);
    EXPECT_EQ(in_folder.st_ino, copy.st_ino) << name;
  }
  EXPECT_FALSE(fs::exists(store_ / "jobs/5/old"));
}

TEST_F(JobsFolder, AReplacedFolderKeepsItsFilesForTheTaskInIt) {
  fs::create_directories(store_ / "objects/b/files");
  write_file_atomically(store_ / "objects/b/files/s.tar", "other");
  PutResult other = folder_result("/mnt/man");
  other.path = store_ / "objects/b/files";
  JobFolder folder(store_, 5);
  folder.add({folder_result("/mnt/man")});
  const UniqueFd task = open_file(data("man"), O_RDONLY | O_DIRECTORY);
  for (const bool to_source : {false, true}) {
    to_source ? folder.point_at({"/mnt/man", store_ / "objects/b/files", {}, false}) : folder.add({other});
    EXPECT_EQ(read_text_file(data("man/s.tar")), "other");
    EXPECT_FALSE(fs::exists(data("man/index.lockstep")));
    const UniqueFd open(::openat(task.get(), "s.tar", O_RDONLY));
    ASSERT_TRUE(open);
    EXPECT_EQ(read_text_file(fmt::format("/proc/self/fd/{}", open.get())), "shard");
    EXPECT_EQ(::faccessat(task.get(), "index.lockstep", R_OK, 0), 0);
  }
}

TEST_F(JobsFolder, AJobThatWasQueuedAgainBeginsAnew) {
  { JobFolder(store_, 5).add({folder_result("/mnt/man")}); }
  const JobFolder again(store_, 5, FileSystem::real(), 1);
  EXPECT_THAT(again.missing({"/mnt/man"}), ElementsAre("/mnt/man"));
  EXPECT_TRUE(fs::is_directory(store_ / "jobs/5-1"));
}

// gc renames the folder of an ended job like this.
TEST_F(JobsFolder, AFolderRenamedDuringTheWaitForItsLockIsMadeAgain) {
  auto first = std::make_unique<JobFolder>(store_, 5);
  struct stat lock {};
  ASSERT_EQ(::stat((store_ / "jobs/5/lock").c_str(), &lock), 0);
  std::thread second([&] { JobFolder(store_, 5).add({folder_result("/mnt/man")}); });
  const auto waits = [&] {
    std::istringstream locks(read_text_file("/proc/locks"));
    const std::string inode = ":" + std::to_string(lock.st_ino) + " ";
    for (std::string line; std::getline(locks, line);) {
      if (line.find("-> FLOCK") != std::string::npos && line.find(inode) != std::string::npos) return true;
    }
    return false;
  };
  while (!waits()) std::this_thread::yield();
  fs::rename(store_ / "jobs/5", store_ / "jobs/.removed-5");
  first.reset();
  second.join();
  EXPECT_TRUE(fs::exists(data("man/s.tar")));
  EXPECT_THAT(JobFolder(store_, 5).missing({"/mnt/man"}), testing::IsEmpty());
}

TEST_F(JobsFolder, ADamagedListIsNamed) {
  { JobFolder(store_, 5).add({folder_result("/mnt/man")}); }
  write_file_atomically(store_ / "jobs/5/staged.json", "{");
  EXPECT_THROW(JobFolder(store_, 5), Error);
}

TEST_F(JobsFolder, TheRecordIsReadableForTheGroupWhateverTheUmask) {
  const mode_t before = ::umask(077);
  Hello hello;
  hello.node = "n1";
  write_staging_record(store_, hello, "staging", {folder_result("/mnt/man")}, 3);
  ::umask(before);
  struct stat about {};
  ASSERT_EQ(::stat((store_ / "staging.json").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0640U);
  const nlohmann::json record = nlohmann::json::parse(read_text_file(store_ / "staging.json"));
  EXPECT_EQ(record.at("node"), "n1");
  EXPECT_EQ(record.at("state"), "staging");
  EXPECT_EQ(record.at("sources").at(0).at("bytes"), 10);
  EXPECT_EQ(record.at("sources").at(0).at("done"), 3);
}

TEST(StepReport, ALongCopySaysHowFarItIs) {
  constexpr std::uint64_t kTotal = 1U << 30U;
  EXPECT_EQ(describe_progress(kTotal / 4, kTotal, 2), "25 % of 1.00 GiB, 128 MiB/s, 6.00 s left");
  EXPECT_EQ(describe_progress(kTotal - 1, kTotal, 2), "99 % of 1.00 GiB, 512 MiB/s, under 1 s left");
  EXPECT_EQ(describe_progress(kTotal, kTotal, 2), "1.00 GiB copied, 512 MiB/s, not yet published");
  EXPECT_EQ(describe_progress(0, 0, 0), "0 B copied, 0 B/s, not yet published");
}

TEST(StepReport, TheUserIsToldNowAndThen) {
  const Hello hello;
  std::vector<std::string> told;
  const StepProgress::Tell tell = [&](const NodeProgress& progress) {
    told.push_back(fmt::format("{} {} of {}", progress.source, progress.done, progress.total));
  };
  StepProgress often("", hello, tell, std::chrono::nanoseconds(0));
  often.update("/mnt/man", {.done = 1, .total = 3});
  often.update("/mnt/man", {.done = 2, .total = 3});
  EXPECT_THAT(told, testing::ElementsAre("man 1 of 3", "man 2 of 3"));
  often.done("done", {});
  often.update("/mnt/man", {.done = 3, .total = 3});
  StepProgress("", hello, tell).update("/mnt/man", {.done = 1, .total = 3});
  EXPECT_EQ(told.size(), 2U);
}

TEST(StepReport, TheSummaryNamesSourcesAndHits) {
  PutResult man;
  man.source = "/mnt/man";
  man.bytes = 1U << 20U;
  man.seconds = 0.41;
  EXPECT_EQ(summary({man}), "staged man: 1.00 MiB in 410 ms (miss)");
  PutResult other = man;
  other.source = "/mnt/b/*.tar";
  other.hit = true;
  EXPECT_EQ(summary({man, other}), "staged man, b: 2.00 MiB in 820 ms (1 of 2 hit)");
}

}  // namespace
}  // namespace lockstep::transfer
