#include "plugin/spank/staging/sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/message_of.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Sources : public testing::Test {
 protected:
  Sources() {
    fs::create_directories(folder_ / "pack");
    write("pack/index.lockstep", "x");
    write("pack/a-00.tar", "x");
    write("pack/a-01.tar", "x");
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string checked(const std::string& name) const {
    return message_of([&] { check_source(path(name)); });
  }
  lockstep::testing::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST_F(Sources, RelativePathsStartFromTheFolder) {
  EXPECT_EQ(absolute_source("a/b", "/x/y"), "/x/y/a/b");
  EXPECT_EQ(absolute_source("../b/", "/x/y"), "/x/b");
  EXPECT_EQ(absolute_source("/a/./b/../c//", "/x"), "/a/c");
  EXPECT_EQ(absolute_source("../../../../etc", "/x"), "/etc");
}

TEST_F(Sources, EqualLastNamesAreRefused) {
  EXPECT_EQ(message_of([] { check_names({"/x/a", "/x/b"}, {}); }), "");
  EXPECT_THAT(message_of([] { check_names({"/x/a", "/y/a"}, {}); }), HasSubstr("$LOCKSTEP_DATA/a"));
  EXPECT_THAT(message_of([] { check_names({"/x/a", "/y/a/*.tar"}, {}); }), HasSubstr("$LOCKSTEP_DATA/a"));
}

TEST_F(Sources, OnlySourcesBelowThePrefixesAreAllowed) {
  EXPECT_EQ(message_of([] { check_names({"/mnt/shared/a"}, {"/scratch", "/mnt/shared/"}); }), "");
  EXPECT_THAT(message_of([] { check_names({"/mnt/shared2/a"}, {"/mnt/shared"}); }), HasSubstr("is outside"));
  EXPECT_THAT(message_of([] { check_names({absolute_source("/mnt/shared/../x", "/")}, {"/mnt/shared"}); }),
              HasSubstr("is outside"));
  EXPECT_THAT(message_of([] { check_names({"/"}, {}); }), HasSubstr("has no name"));
}

TEST_F(Sources, DataOfAnyFormatPasses) {
  fs::create_directories(folder_ / "tokens");
  write("tokens/a.bin", "x");
  write("tokens/a.idx", "x");
  for (const char* source : {"tokens", "tokens/a", "tokens/a.bin", "tokens/a.*"})
    EXPECT_EQ(checked(source), "") << source;
  fs::remove(folder_ / "tokens/a.bin");
  EXPECT_THAT(checked("tokens/a"), HasSubstr("tokens/a.bin: No such file"));
}

TEST_F(Sources, APackAndItsShardsPass) {
  EXPECT_EQ(checked("pack"), "");
  EXPECT_EQ(checked("pack/a-00.tar"), "");
  EXPECT_EQ(checked("pack/a-{00..01}.tar"), "");
  EXPECT_EQ(checked("pack/*.tar"), "");
}

TEST_F(Sources, EachKindOfBadSourceIsNamed) {
  fs::create_directories(folder_ / "empty");
  fs::create_directories(folder_ / "loose");
  write("loose/a.txt", "x");
  write("loose/zero.tar", "");
  fs::create_directories(folder_ / "cut");
  write("cut/index.lockstep", "");
  EXPECT_THAT(checked("missing"), HasSubstr("missing: No such file"));
  EXPECT_THAT(checked("empty"), HasSubstr("empty is empty"));
  EXPECT_THAT(checked("loose/zero.tar"), HasSubstr("is empty"));
  EXPECT_THAT(checked("cut"), HasSubstr("index.lockstep is empty"));
  EXPECT_THAT(checked("pack/b-*.tar"), HasSubstr("matches no file"));
  EXPECT_THAT(checked("nowhere/b-*.tar"), HasSubstr("nowhere: No such file"));
}

TEST_F(Sources, AfterTheTimeoutTheNodesCheckTheRest) {
  using std::chrono::milliseconds;
  const std::vector<std::string> last_is_bad{path("pack"), path("pack/a-00.tar"), path("missing")};
  EXPECT_EQ(message_of([&] { check_sources(last_is_bad, milliseconds(0)); }), "");
  EXPECT_THAT(message_of([&] { check_sources(last_is_bad, std::chrono::hours(1)); }), HasSubstr("missing"));
  EXPECT_THAT(message_of([&] { check_sources({path("missing")}, milliseconds(0)); }), HasSubstr("missing"));
  // An earlier step of the job may have staged it before it was removed.
  const std::vector<std::string> removed{path("missing"), path("pack/b-*.tar"), path("missing/*.tar")};
  EXPECT_EQ(message_of([&] { check_sources(removed, std::chrono::hours(1), true); }), "");
}

TEST_F(Sources, AfterTheTimeoutTheNodesCheckFoldersAndPatterns) {
  fs::create_directories(folder_ / "empty");
  fs::create_directories(folder_ / "loose");
  fs::create_symlink("x", folder_ / "loose/link");
  for (const char* const bad : {"empty", "loose", "pack/b-*.tar"}) {
    EXPECT_NE(checked(bad), "");
    EXPECT_EQ(message_of([&] { check_sources({path(bad)}, std::chrono::milliseconds(0)); }), "") << bad;
  }
}

TEST_F(Sources, AnEntryThatCannotBeCopiedIsNamed) {
  fs::create_directories(folder_ / "loose/a");
  write("loose/x", "x");
  EXPECT_EQ(checked("loose"), "");
  fs::create_symlink("x", folder_ / "loose/a/link");
  EXPECT_THAT(checked("loose"), HasSubstr("loose/a/link is a symbolic link"));
  fs::remove(folder_ / "loose/a/link");
  fs::create_symlink("../x", folder_ / "loose/a/link");
  EXPECT_EQ(checked("loose"), "") << "it leads to a file of the source";
  fs::remove(folder_ / "loose/a/link");
  fs::create_symlink("/etc/passwd", folder_ / "loose/a/link");
  EXPECT_THAT(checked("loose"),
              HasSubstr("loose/a/link is a symbolic link out of the folder, to /etc/passwd"));
  fs::remove(folder_ / "loose/a/link");
  ASSERT_EQ(::mkfifo(path("loose/pipe").c_str(), 0600), 0);
  EXPECT_THAT(checked("loose"), HasSubstr("loose/pipe is neither a folder nor a regular file"));
  // Of a pack they copy what the index names.
  fs::create_symlink("x", folder_ / "pack/link");
  EXPECT_EQ(checked("pack"), "");
}

TEST_F(Sources, ShellSyntaxIsExplained) {
  EXPECT_THAT(checked("pack/missing"), HasSubstr("check the path"));
  EXPECT_THAT(checked("~/pack"), HasSubstr("'~' is not expanded here: write the whole path"));
  EXPECT_THAT(checked("$SCRATCH/pack"), HasSubstr("variables are not expanded here: write the whole path"));
  EXPECT_THAT(checked("s3:/bucket/pack"), HasSubstr("only files of a mounted file system"));
}

}  // namespace
}  // namespace lockstep::spank
