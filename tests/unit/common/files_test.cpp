#include "common/files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>

#include "common/error.h"
#include "common/output.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "lockstep-files-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(folder_); }
  fs::path folder_;
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

TEST_F(Files, AFailedAtomicWriteKeepsTheOldThingAndLeavesNoTemporaryFile) {
  fs::create_directory(folder_ / "taken");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "x"), Error);
  EXPECT_TRUE(fs::is_directory(folder_ / "taken"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, AnOutputReplacesWhatALinkPointsToAndNotTheLink) {
  write_file_atomically(folder_ / "target", "old");
  fs::create_symlink("target", folder_ / "link");
  write_output(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "target"), "new");
  write_output(folder_ / "plain", "whole");
  EXPECT_EQ(read_text_file(folder_ / "plain"), "whole");
}

TEST_F(Files, AMissingFileIsNamedWithTheReason) {
  EXPECT_THAT(
      [&] { read_text_file(folder_ / "none"); },
      testing::Throws<Error>(testing::Property(
          &Error::what, testing::HasSubstr((folder_ / "none").string() + ": No such file or directory"))));
}

}  // namespace
}  // namespace lockstep
