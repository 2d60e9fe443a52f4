#include "common/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "common/error.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  lockstep::testing::TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path();
};

TEST_F(Files, AtomicWriteReplacesTheWholeFileAndLeavesNothingElse) {
  write_file_atomically(folder_ / "a", "first, and longer");
  write_file_atomically(folder_ / "a", "second", 0640);
  EXPECT_EQ(read_text_file(folder_ / "a"), "second");
  struct stat status {};
  ASSERT_EQ(::stat((folder_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, AFailedAtomicWriteKeepsTheOldFileAndLeavesNoTemporaryFile) {
  fs::create_directory(folder_ / "taken");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "x"), Error);
  EXPECT_TRUE(fs::is_directory(folder_ / "taken"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, OutputReplacesTheTargetOfALinkNotTheLink) {
  write_file_atomically(folder_ / "target", "old");
  fs::create_symlink("target", folder_ / "link");
  write_output(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "target"), "new");
  write_output(folder_ / "plain", "whole");
  EXPECT_EQ(read_text_file(folder_ / "plain"), "whole");
}

TEST_F(Files, OutputThroughALinkThatLeadsToNoFileIsAnError) {
  fs::create_symlink("two", folder_ / "one");
  fs::create_symlink("one", folder_ / "two");
  fs::create_symlink("none", folder_ / "one_dangling");
  for (const fs::path& path : {folder_ / "one", folder_ / "one" / "file", folder_ / "one_dangling"}) {
    EXPECT_THAT([&] { write_output(path, "new"); },
                ::testing::Throws<Error>(
                    ::testing::Property(&Error::what, ::testing::HasSubstr((folder_ / "one").string()))));
  }
}

TEST_F(Files, OutputToAnOpenDescriptorIsWrittenAtItsPosition) {
  write_file_atomically(folder_ / "log", "precious\n");
  const UniqueFd log = open_file(folder_ / "log", O_WRONLY | O_APPEND);
  std::filesystem::create_symlink(fmt::format("/dev/fd/{}", log.get()), folder_ / "link");
  std::filesystem::create_symlink("link", folder_ / "to link");
  for (const std::string& name :
       {fmt::format("/dev/fd/{}", log.get()), fmt::format("/proc/self/fd/{}", log.get()),
        (folder_ / "link").string(), (folder_ / "to link").string()})
    write_output(name, "new\n");
  EXPECT_EQ(read_text_file(folder_ / "log"), "precious\nnew\nnew\nnew\nnew\n");
  EXPECT_THROW(write_output("/dev/fd/999", "new"), Error);
}

TEST_F(Files, OutputToStandardOutputKeepsTheOrder) {
  write_file_atomically(folder_ / "log", "precious\n");
  // Acts as /dev/stdout, which a test that runs as root must not put at risk.
  std::filesystem::create_symlink("/proc/self/fd/1", folder_ / "stdout");
  std::fflush(stdout);
  const UniqueFd before(::dup(STDOUT_FILENO));
  {
    const UniqueFd log = open_file(folder_ / "log", O_WRONLY | O_APPEND);
    ::dup2(log.get(), STDOUT_FILENO);
  }
  std::fputs("printed before\n", stdout);
  write_output(folder_ / "stdout", "the output\n");
  write_output(folder_ / "log", "by its own name\n");
  std::fputs("printed after\n", stdout);
  std::fflush(stdout);
  ::dup2(before.get(), STDOUT_FILENO);
  EXPECT_EQ(read_text_file(folder_ / "log"),
            "precious\nprinted before\nthe output\nby its own name\nprinted after\n");
}

TEST_F(Files, AMissingFileIsNamedWithTheReason) {
  EXPECT_THAT(
      [&] { read_text_file(folder_ / "none"); },
      ::testing::Throws<Error>(::testing::Property(
          &Error::what, ::testing::HasSubstr((folder_ / "none").string() + ": No such file or directory"))));
}

}  // namespace
}  // namespace lockstep
