#include "common/file_system.h"

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

/// Writes at most three bytes in a call, and every second call is interrupted by a signal.
class SlowDisk : public FileSystem {
 public:
  ssize_t call(const FileCall& call) override {
    if (++calls_ % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    FileCall part = call;
    part.size = std::min<std::size_t>(call.size, 3);
    return FileSystem::call(part);
  }

 private:
  int calls_ = 0;
};

TEST(FileSystem, WritesAllBytesEvenIfTheDiskTakesFewAtATime) {
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
