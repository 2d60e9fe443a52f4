// The fixture of the staging tests: a folder that is removed at the end, files and packs in it, and damage.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/error.h"
#include "staging/pack/reader.h"

namespace lockstep::staging_test {

namespace fs = std::filesystem;

/// The name of an object in a store.
inline constexpr const char* kName = "00112233445566778899aabbccddeeff";
/// A chunk size with which small data is many chunks.
inline constexpr std::uint32_t kChunk = 16384;

class StagingTest : public testing::Test {
 protected:
  StagingTest();
  /// Ends the processes that a failed test has left running, and removes its folder.
  ~StagingTest() override;

  /// Writes a file below the test's folder, making folders as needed.
  void write(const fs::path& name, const std::string& content) const;

  /// Writes the files into `name`.src and packs them as `name`; returns the pack's folder.
  fs::path make_pack(const std::string& name, const std::map<std::string, std::string>& files,
                     std::uint64_t shard_bytes = std::uint64_t{256} << 20, int token_bytes = 0) const;

  /// A pack of `samples` samples of 3000 bytes over several shards of 64 KiB.
  fs::path make_large_pack(const std::string& name, int samples) const;

  /// The names in the test's folder, sorted.
  std::vector<std::string> names_here() const;

  fs::path folder_;
};

std::string read(const fs::path& file);

/// A sample's payload.
std::string read_sample(const pack::Reader& reader, std::size_t i);

/// Its permissions; a link is not followed.
mode_t mode_of(const fs::path& path);

/// Changes one byte of a file, whatever its permissions and times: the times stay.
void flip_byte(const fs::path& file, std::uint64_t offset);

/// Every file below a folder with its content.
std::map<std::string, std::string> content_of(const fs::path& folder);
/// The bytes of all these files.
std::uint64_t size_of(const fs::path& folder);

/// Returns true once the condition holds, or false after more than half a minute.
bool wait_for(const std::function<bool()>& condition);

/// Starts a process that does `work` and ends with 0, or prints the exception of `work` and ends with 1. It
/// does not outlive this process, nor the fixture.
pid_t start_child(const std::function<void()>& work);
/// Waits for a child. Returns its exit code, or 128 + the signal that ended it.
int end_of(pid_t child);
/// Starts a child and waits for it.
int in_child(const std::function<void()>& work);
/// The only child of a process. Waits until there is one, and throws Error if there is none.
pid_t child_of(pid_t process);

/// Matches a call that throws Error whose message contains all these texts.
template <typename... Texts>
auto ThrowsErrorWith(Texts... texts) {
  return testing::Throws<Error>(
      testing::Property(&Error::what, testing::AllOf(testing::HasSubstr(texts)...)));
}

}  // namespace lockstep::staging_test
