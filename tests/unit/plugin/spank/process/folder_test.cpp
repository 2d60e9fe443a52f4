#include "plugin/spank/process/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "plugin/spank/process/process.h"
#include "tests/unit/message_of.h"
#include "tests/unit/plugin/spank/process/own_mounts.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kUser = 12345;
constexpr gid_t kGroup = 12346;

class FolderOfRoot : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    std::string name = "/var/tmp/folder_test.XXXXXX";
    base_ = ::mkdtemp(name.data());
  }
  void TearDown() override {
    if (!base_.empty()) fs::remove_all(base_);
  }
  std::string path(const std::string& name) const { return (base_ / name).string(); }
  static struct stat about(const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::lstat(file.c_str(), &status), 0) << file;
    return status;
  }
  fs::path base_;
};

TEST_F(FolderOfRoot, ACacheIsMadeOnlyWhereItsDiskIs) {
  const auto error_of = [](const std::string& cache, bool must_be_mount) {
    return message_of([&] { Folder::open_cache(cache, must_be_mount); });
  };
  EXPECT_THAT(error_of(path("local/lockstep"), false),
              HasSubstr("this node has no folder " + path("local") + ": mount the node's local disk"));
  EXPECT_FALSE(fs::exists(path("local")));
  fs::create_directory(path("local"));
  EXPECT_THAT(error_of(path("local/lockstep"), true), HasSubstr("no disk is mounted at"));
  EXPECT_FALSE(fs::exists(path("local/lockstep")));
  EXPECT_EQ(error_of(path("local/lockstep"), false), "");
  EXPECT_TRUE(fs::is_directory(path("local/lockstep")));
  const auto mounted = [&] {
    EXPECT_EQ(error_of(path("local/lockstep"), true), "");
    EXPECT_EQ(error_of(path("local"), true), "");
    EXPECT_NE(error_of(path("local/lockstep/deeper"), true), "");
  };
  EXPECT_THAT(in_own_mounts(path("local"), "mode=755", mounted), testing::AnyOf(0, kNoMounts));
}

TEST_F(FolderOfRoot, MakesOrFindsTheUsersFolder) {
  for (int round = 0; round < 2; ++round) {
    const mode_t before = ::umask(077);
    Folder::open_root(path("cache/deep"), true).own("7", kUser, kGroup, 02750);
    ::umask(before);
    EXPECT_EQ(about(path("cache/deep/7")).st_uid, kUser);
    EXPECT_EQ(about(path("cache/deep/7")).st_gid, kGroup);
    EXPECT_EQ(about(path("cache/deep/7")).st_mode & 07777U, 02750U);
  }
}

TEST_F(FolderOfRoot, FollowsNoLinkAtAnyLevel) {
  fs::create_directories(base_ / "real/7");
  fs::create_directory_symlink(base_ / "real", base_ / "link");
  EXPECT_THAT(message_of([&] { Folder::open_root(path("link"), true); }), HasSubstr("link"));
  EXPECT_THAT(message_of([&] { Folder::open_root(path("link/7"), true); }), HasSubstr("link"));
  fs::create_directories(base_ / "roots");
  fs::create_directory_symlink(base_ / "roots", base_ / "real/8");
  EXPECT_THAT(message_of([&] { Folder::open_root(path("real"), true).own("8", kUser, kGroup, 0700); }),
              HasSubstr("link"));
  EXPECT_EQ(about(path("roots")).st_uid, 0U);
}

TEST_F(FolderOfRoot, RefusesAnotherUsersFolder) {
  const Folder cache = Folder::open_root(path("cache"), true);
  cache.own("7", kUser + 1, kGroup, 0700);
  EXPECT_THAT(message_of([&] { cache.own("7", kUser, kGroup, 0700); }), HasSubstr("belongs to user 12346"));
  EXPECT_EQ(about(path("cache/7")).st_uid, kUser + 1);
}

TEST_F(FolderOfRoot, RefusesABaseThatOthersMayWrite) {
  fs::create_directories(base_ / "open");
  ASSERT_EQ(::chmod(path("open").c_str(), 0777), 0);
  EXPECT_EQ(
      message_of([&] { Folder::open_root(path("open"), true); }),
      path("open") + " must be writable by root alone, and its mode is 0777: chmod 755 " + path("open"));
  ASSERT_EQ(::chmod(path("open").c_str(), 0755), 0);
  ASSERT_EQ(::chown(path("open").c_str(), kUser, kGroup), 0);
  EXPECT_THAT(message_of([&] { Folder::open_root(path("open"), true); }), HasSubstr("must belong to root"));
}

TEST_F(FolderOfRoot, AUserMakesFoldersUnderAnyUmask) {
  ASSERT_EQ(::chmod(base_.c_str(), 0755), 0);
  fs::create_directories(base_ / "store");
  ASSERT_EQ(::chown(path("store").c_str(), kUser, kGroup), 0);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(as_user(kUser, kGroup, std::chrono::seconds(30), [&] {
      ::umask(0777);
      Folder::open_path(path("store")).own("leases", kUser, kGroup, 0700).own("held", kUser, kGroup, 0700);
    }));
    EXPECT_EQ(about(path("store/leases/held")).st_mode & 07777U, 0700U);
  }
}

TEST_F(FolderOfRoot, AUserRemovesATreeWhoseModesForbidIt) {
  ASSERT_EQ(::chmod(base_.c_str(), 0755), 0);
  fs::create_directories(base_ / "jobs/1/data/a");
  std::ofstream(base_ / "jobs/1/data/a/file") << "x";
  for (const char* name : {"jobs", "jobs/1", "jobs/1/data", "jobs/1/data/a", "jobs/1/data/a/file"})
    ASSERT_EQ(::chown(path(name).c_str(), kUser, kGroup), 0);
  for (const char* name : {"jobs/1/data/a", "jobs/1"}) ASSERT_EQ(::chmod(path(name).c_str(), 0), 0);
  EXPECT_TRUE(
      as_user(kUser, kGroup, std::chrono::seconds(30), [&] { Folder::open_path(path("jobs")).remove("1"); }));
  EXPECT_FALSE(fs::exists(base_ / "jobs/1"));
}

TEST_F(FolderOfRoot, RemovesFoldersThatAreNestedDeeperThanItsRecursion) {
  fs::path deep = base_ / "jobs/1";
  for (int level = 0; level < 300; ++level) deep /= "a";
  fs::create_directories(deep);
  std::ofstream(deep / "file") << "x";
  std::ofstream(base_ / "jobs/1/.moved-1") << "x";
  fs::create_directories(base_ / "jobs/1/.moved-2/b");
  Folder::open_path(path("jobs")).remove("1");
  EXPECT_FALSE(fs::exists(base_ / "jobs/1"));
}

TEST_F(FolderOfRoot, RemovesNothingInAFileSystemThatAUserHasMounted) {
  fs::create_directories(base_ / "jobs/1/mounted");
  const auto mounted = [&] {
    std::ofstream(base_ / "jobs/1/mounted/file") << "x";
    EXPECT_THAT(message_of([&] { Folder::open_path(path("jobs")).remove("1"); }),
                HasSubstr("a file system is mounted there"));
    EXPECT_TRUE(fs::exists(base_ / "jobs/1/mounted/file"));
  };
  EXPECT_THAT(in_own_mounts(path("jobs/1/mounted"), "", mounted), testing::AnyOf(0, kNoMounts));
}

TEST_F(FolderOfRoot, RemovesATreeButNotTheTargetsOfItsLinks) {
  fs::create_directories(base_ / "jobs/1/data/a");
  std::ofstream(base_ / "jobs/1/data/a/file") << "x";
  std::ofstream(base_ / "kept") << "x";
  fs::create_directories(base_ / "kept_folder/b");
  fs::create_symlink(base_ / "kept", base_ / "jobs/1/data/link");
  fs::create_directory_symlink(base_ / "kept_folder", base_ / "jobs/1/data/folder_link");
  fs::create_hard_link(base_ / "kept", base_ / "jobs/1/data/hard");
  const Folder jobs = Folder::open_path(path("jobs"));
  jobs.remove("1");
  jobs.remove("1");
  EXPECT_FALSE(fs::exists(base_ / "jobs/1"));
  EXPECT_TRUE(fs::exists(base_ / "kept"));
  EXPECT_TRUE(fs::exists(base_ / "kept_folder/b"));
}

}  // namespace
}  // namespace lockstep::spank
