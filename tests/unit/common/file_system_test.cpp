#include "common/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <string>

#include "common/files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Takes a few bytes at a time, and is interrupted by a signal in between.
class SlowDisk : public FileSystem {
 protected:
  ssize_t call_pwrite(int fd, const void* from, std::size_t size, off_t offset) override {
    if (++calls_ % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    return FileSystem::call_pwrite(fd, from, std::min<std::size_t>(size, 3), offset);
  }

 private:
  int calls_ = 0;
};

TEST(FileSystem, WritesAllOfItHoweverLittleTheDiskTakesAtOnce) {
  std::string name = (fs::temp_directory_path() / "lockstep-file-XXXXXX").string();
  const UniqueFd fd(::mkstemp(name.data()));
  ASSERT_TRUE(fd);
  SlowDisk disk;
  const std::string content = "all of these bytes";
  disk.write_at(fd.get(), std::as_bytes(std::span(content)), 2, name);
  EXPECT_EQ(read_text_file(name), std::string(2, '\0') + content);
  fs::remove(name);
}

}  // namespace
}  // namespace lockstep
