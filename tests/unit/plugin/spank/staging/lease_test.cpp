#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "plugin/spank/process/report.h"
#include "plugin/spank/staging/staging.h"
#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/message_of.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class LeaseTest : public testing::Test {
 protected:
  fs::path file() const { return store_ / "leases/held/7.0"; }

  // As in lockstep-stage: nobody holds a file that can be locked exclusively.
  bool is_held() const {
    const int fd = ::open(file().c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    const bool held = ::flock(fd, LOCK_EX | LOCK_NB) != 0;
    ::close(fd);
    return held;
  }

  std::string error_of() const {
    return message_of([this] { StepLease::take(store_, "7.0"); });
  }

  lockstep::testing::TemporaryFolder temporary_;
  fs::path store_ = fs::canonical(temporary_.path());
};

TEST_F(LeaseTest, TheLockLivesAsLongAsTheObject) {
  {
    const StepLease lease = StepLease::take(store_, "7.0");
    EXPECT_EQ(lease.path(), file());
    EXPECT_TRUE(is_held());
  }
  EXPECT_FALSE(is_held());
}

TEST_F(LeaseTest, OnlyTheUserHasAccessUnderAnyUmask) {
  for (const mode_t umask : {0, 0777}) {
    fs::remove_all(store_ / "leases");
    const mode_t before = ::umask(umask);
    const StepLease lease = StepLease::take(store_, "7.0");
    ::umask(before);
    struct stat about {};
    ASSERT_EQ(::stat(file().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777U, 0600U);
    ASSERT_EQ(::stat(file().parent_path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777U, 0700U);
  }
}

TEST_F(LeaseTest, TakesOverTheNameOfAKilledStep) {
  { const StepLease killed = StepLease::take(store_, "7.0"); }
  const StepLease lease = StepLease::take(store_, "7.0");
  EXPECT_TRUE(is_held());
}

TEST_F(LeaseTest, TheLastComponentOfAStepRemovesTheName) {
  std::optional<StepLease> first(StepLease::take(store_, "7.0"));
  const StepLease second = StepLease::take(store_, "7.0");
  first->remove_name();
  EXPECT_TRUE(fs::exists(file()));
  first.reset();
  EXPECT_TRUE(is_held());
  second.remove_name();
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(LeaseTest, TheNameOfALaterStepStays) {
  const StepLease early = StepLease::take(store_, "7.0");
  fs::remove(file());
  const StepLease late = StepLease::take(store_, "7.0");
  early.remove_name();
  EXPECT_TRUE(fs::exists(file()));
}

TEST_F(LeaseTest, LinksInItsPathAreRefused) {
  const fs::path elsewhere = store_ / "elsewhere";
  fs::create_directories(elsewhere / "held");
  for (const char* at : {"leases", "leases/held", "leases/held/7.0"}) {
    fs::remove_all(store_ / "leases");
    fs::create_directories((store_ / at).parent_path());
    fs::create_symlink(elsewhere, store_ / at);
    EXPECT_THAT(error_of(), HasSubstr("link")) << at;
  }
  EXPECT_TRUE(fs::is_empty(elsewhere / "held"));
}

TEST_F(LeaseTest, APipeOrAFolderInItsPlaceIsRefusedAtOnce) {
  fs::create_directories(file().parent_path());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_THAT(error_of(), HasSubstr("is not a regular file of user"));
  fs::remove(file());
  fs::create_directory(file());
  EXPECT_THAT(error_of(), HasSubstr("cannot take the lease"));
}

TEST_F(LeaseTest, AFileThatStaysLockedIsRefusedAfterASecond) {
  fs::create_directories(file().parent_path());
  std::ofstream(file()).flush();
  const int fd = ::open(file().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_THAT(error_of(), HasSubstr("another process has locked it"));
  ::close(fd);
}

}  // namespace
}  // namespace lockstep::spank
