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
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::staging_test {

/// The name of an object in a store.
inline constexpr const char* kName = "00112233445566778899aabbccddeeff";
/// A chunk size with which small data is many chunks.
inline constexpr std::uint32_t kChunk = 16384;

class StagingTest : public testing::Test {
 protected:
  StagingTest();
  /// Ends the processes that a failed test has left running, and removes its folder.
  ~StagingTest() override;

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  /// The cache of this node, and that of one of several.
  fs::path cache() const { return folder_ / "cache"; }
  fs::path cache(int node) const { return folder_ / fmt::format("cache{}", node); }

  /// Writes a file below the test's folder, making folders as needed.
  void write(const fs::path& name, const std::string& content) const;

  /// Writes the files into `name`.src and packs them as `name`; returns the pack's folder.
  fs::path make_pack(const std::string& name, const std::map<std::string, std::string>& files,
                     std::uint64_t shard_bytes = std::uint64_t{256} << 20, int token_bytes = 0) const;

  /// A pack of `samples` samples of 3000 bytes over several shards of 64 KiB.
  fs::path make_large_pack(const std::string& name, int samples) const;

  /// A pack of three shards of about 5 MB.
  fs::path make_big_pack(const std::string& name) const;

  /// The names in a folder, sorted; none if it does not exist.
  static std::vector<std::string> names(const fs::path& folder);
  std::vector<std::string> names_here() const { return names(folder_); }
  /// The names in the cache: objects and copies under way.
  std::vector<std::string> objects() const { return names(cache() / "objects"); }

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

/// Gives this process a separate mount namespace; without root through a user namespace. Returns false if it may not have one.
bool own_mounts();

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

/// Work that must survive an accident at each of its calls.
struct EveryCall {
  std::function<void()> prepare = [] {};  ///< before each round
  std::function<void(FileSystem&)> work;
  std::function<void()> check;  ///< after each round, also after the last one, which has no accident
  std::function<void(const Error&)> refused = [](const Error&) {};  ///< gets what the work has thrown
  bool reads = false;                                               ///< reads and syncfs count as calls too
};
/// Does the work in a process that is killed at its first call, then at its second, until it ends without. Returns the
/// number of kills.
int kill_at_every_call(const EveryCall& every);
/// The same with one call that fails. Returns how often the work threw Error.
int fail_at_every_call(const EveryCall& every, int error);

/// Matches a call that throws Error whose message contains all these texts.
template <typename... Texts>
auto ThrowsErrorWith(Texts... texts) {
  return testing::Throws<Error>(
      testing::Property(&Error::what, testing::AllOf(testing::HasSubstr(texts)...)));
}

}  // namespace lockstep::staging_test
