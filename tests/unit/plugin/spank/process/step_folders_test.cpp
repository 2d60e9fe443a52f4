#include "plugin/spank/process/step_folders.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/plugin/spank/process/own_mounts.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr uid_t kAlice = 12345;
constexpr uid_t kBob = 12346;
constexpr int kLong = 3600;

class StepFolders : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    std::string name = "/var/tmp/step_folders_test.XXXXXX";
    base_ = ::mkdtemp(name.data());
  }
  void TearDown() override {
    if (!base_.empty()) fs::remove_all(base_);
  }

  Folder root() const { return Folder::open_root(base_, false); }
  fs::path at(uid_t uid, const std::string& name) const { return base_ / std::to_string(uid) / name; }

  // A step begins, as in slurmstepd: the lock is its lifetime.
  UniqueFd begin(uid_t uid, const std::string& step) const {
    const Folder user = root().own(std::to_string(uid), 0, 0, 0751);
    UniqueFd mark = mark_running(user, step);
    user.own(step, uid, 0, 02750);
    return mark;
  }
  UniqueFd begin_links(uid_t uid, const std::string& job) const {
    const Folder of_job = root().own("jobs", 0, 0, 0711).own(job, 0, 0, 0711);
    UniqueFd mark = mark_running(of_job, job + ".0");
    of_job.own(std::to_string(uid), uid, 0, 0700);
    return mark;
  }
  void end(uid_t uid, const std::string& job, int keep) const { clean_up_records(root(), uid, job, keep); }

  static std::vector<std::string> names(const fs::path& folder) {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename());
    return names;
  }

  fs::path base_;
};

TEST_F(StepFolders, AUserWhoFillsTheFileSystemKeepsNoFolderAfterTheJobsEnd) {
  const auto fill = [&] {
    UniqueFd mark = begin(kAlice, "1.0");
    const UniqueFd other = begin(kBob, "2.0");
    for (int i = 0; std::ofstream(at(kAlice, "1.0") / std::to_string(i)).is_open(); ++i) {
    }
    EXPECT_FALSE(std::ofstream(at(kAlice, "one more")).is_open()) << "the file system is not full";
    mark.reset();
    end(kAlice, "1", kLong);
    EXPECT_THAT(names(base_ / std::to_string(kAlice)), UnorderedElementsAre("1.0", ".ended-1.0"));
    end(kBob, "9", 0);  // the end of any job
    EXPECT_THAT(names(base_ / std::to_string(kAlice)), IsEmpty());
    EXPECT_THAT(names(base_ / std::to_string(kBob)), UnorderedElementsAre("2.0", ".running-2.0"));
    EXPECT_TRUE(std::ofstream(at(kBob, "2.0") / "rank-0.record").is_open());
  };
  EXPECT_THAT(in_own_mounts(base_, "nr_inodes=50,mode=755", fill), testing::AnyOf(0, kNoMounts));
}

TEST_F(StepFolders, TheTimeOfTheMarkIsTheEndOfTheJob) {
  UniqueFd mark = begin(kAlice, "1.0");
  const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at(kAlice, ".running-1.0").c_str(), long_ago, 0), 0);
  end(kAlice, "1", kLong);
  EXPECT_TRUE(fs::exists(at(kAlice, "1.0")));
  ASSERT_EQ(::utimensat(AT_FDCWD, at(kAlice, ".ended-1.0").c_str(), long_ago, 0), 0);
  mark.reset();
  end(kBob, "2", kLong);
  EXPECT_FALSE(fs::exists(at(kAlice, "1.0")));
}

TEST_F(StepFolders, RecordsOfAJobWhoseEndWasNeverReportedGo) {
  (void)begin(kAlice, "1.0");
  end(kBob, "2", kLong);
  EXPECT_TRUE(fs::exists(at(kAlice, ".ended-1.0")));
  EXPECT_TRUE(fs::exists(at(kAlice, "1.0")));
  end(kBob, "2", 0);
  EXPECT_THAT(names(base_ / std::to_string(kAlice)), IsEmpty());
}

TEST_F(StepFolders, RecordsOfAJobThatRunsStay) {
  const UniqueFd batch = begin(kAlice, "1.batch");
  (void)begin(kAlice, "1.0");  // a step of the job that has ended
  (void)begin(kAlice, "10.0");
  end(kBob, "2", 0);
  end(kBob, "1", 0);  // as another cluster's number
  EXPECT_THAT(names(base_ / std::to_string(kAlice)),
              UnorderedElementsAre("1.batch", ".running-1.batch", "1.0", ".running-1.0"));
  end(kAlice, "1", 0);
  EXPECT_THAT(names(base_ / std::to_string(kAlice)), IsEmpty());
}

// A job whose steps do not always use all of its nodes.
TEST_F(StepFolders, RecordsStayIfTheJobBeginsAnotherStepHere) {
  begin(kAlice, "1.0").reset();
  end(kBob, "2", kLong);  // no sign of job 1
  EXPECT_TRUE(fs::exists(at(kAlice, ".ended-1.0")));
  const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at(kAlice, ".ended-1.0").c_str(), long_ago, 0), 0);
  UniqueFd next = begin(kAlice, "1.1");
  end(kBob, "3", kLong);
  EXPECT_TRUE(fs::exists(at(kAlice, "1.0")));
  next.reset();
  end(kBob, "4", kLong);
  EXPECT_TRUE(fs::exists(at(kAlice, "1.0"))) << "its hour begins when the job is seen for the last time";
  end(kAlice, "1", 0);
  EXPECT_THAT(names(base_ / std::to_string(kAlice)), IsEmpty());
}

TEST_F(StepFolders, AStepThatBeginsKeepsTheRecordsOfItsName) {
  begin(kAlice, "1.0").reset();
  end(kBob, "2", kLong);
  // As between the two calls of mark_running(): the lock is taken, and the name is still the old one.
  const UniqueFd beginning(::open(at(kAlice, ".ended-1.0").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(beginning.get(), LOCK_SH | LOCK_NB), 0);
  end(kBob, "3", 0);
  EXPECT_THAT(names(base_ / std::to_string(kAlice)), UnorderedElementsAre("1.0", ".ended-1.0"));
}

TEST_F(StepFolders, AStepWithoutAMarkIsKnownToEndOnlyWithItsJob) {
  root().own(std::to_string(kAlice), 0, 0, 0751).own("1.0", kAlice, 0, 02750);
  end(kBob, "2", 0);
  EXPECT_TRUE(fs::exists(at(kAlice, "1.0")));
  end(kAlice, "1", 0);
  EXPECT_FALSE(fs::exists(at(kAlice, "1.0")));
}

TEST_F(StepFolders, ARequeuedJobRunsAgainUnderItsName) {
  begin(kAlice, "1.0").reset();
  end(kAlice, "1", kLong);
  const UniqueFd again = begin(kAlice, "1.0");
  end(kBob, "2", 0);
  EXPECT_THAT(names(base_ / std::to_string(kAlice)), UnorderedElementsAre("1.0", ".running-1.0"));
}

TEST_F(StepFolders, NoUserCanPretendThatAStepRuns) {
  ASSERT_EQ(::chmod(base_.c_str(), 0755), 0);
  begin(kAlice, "1.0").reset();
  struct stat about {};
  ASSERT_EQ(::stat(at(kAlice, ".running-1.0").c_str(), &about), 0);
  EXPECT_EQ(about.st_uid, 0U);
  EXPECT_EQ(about.st_mode & 07777U, 0600U);
}

TEST_F(StepFolders, LinksGoWithTheirJobOrItsLastSlurmstepd) {
  const UniqueFd first = begin_links(kAlice, "1");
  const UniqueFd second = begin_links(kAlice, "2");
  begin_links(kAlice, "3").reset();
  fs::create_directories(base_ / "jobs/1/12345/jobs/1/data");
  clean_up_links(root(), "1");
  EXPECT_THAT(names(base_ / "jobs"), UnorderedElementsAre("2"));
  EXPECT_THAT(names(base_ / "jobs/2"), UnorderedElementsAre("12345", ".running-2.0"));
}

}  // namespace
}  // namespace lockstep::spank
