// Makes a pack: many small files become a few tar shards and an index.
//
// It is deterministic: the same files give the same bytes with any number of threads. It is atomic: the
// folder appears under its name when it is complete and synced. It can be continued: a call that is killed,
// stopped or fails keeps its complete shards in a hidden folder beside the new one, and the same call
// continues after them, with the same result as one call.
//
// Threads: safe from any thread and process; of two calls for the same folder the second is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/file_system.h"

namespace lockstep::pack {

/// The call was stopped from outside.
class Stopped : public Error {
 public:
  using Error::Error;
};

struct CreateOptions {
  std::filesystem::path folder;    ///< the files' names are relative to it
  std::vector<std::string> files;  ///< in the order of the samples (file_list.h)
  std::filesystem::path out;       ///< the new pack; must not exist, or must be an empty folder
  int token_bytes = 0;             ///< 2 or 4 if every file holds little-endian tokens of that size
  /// The largest shard; a sample that is larger gets its own shard.
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  int threads = 0;  ///< that open and read files; 0: chosen automatically
  std::function<void(std::size_t files, std::uint64_t bytes)> progress;  ///< done so far
  /// Lines for the user, for example that an earlier call is continued.
  std::function<void(const std::string& line)> notice;
  /// Once true, which a signal handler may do, the call ends with Stopped.
  const std::atomic<bool>* stop = nullptr;
  FileSystem* system = nullptr;  ///< all files are written through it; the real one if not set
};

/// Counts all shards.
struct CreateResult {
  std::size_t samples = 0;
  std::size_t parts = 0;
  std::size_t shards = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t pack_bytes = 0;     ///< of the shards and the index
  std::size_t continued_files = 0;  ///< files that an earlier call had packed
};

/// Throws Error naming the file or folder that cannot be packed; Stopped if asked to stop.
CreateResult create(const CreateOptions& options);

/// The folder of a new pack as an absolute path without a slash at its end. Throws Error if its parent does
/// not exist, or if the folder exists and is not empty.
std::filesystem::path new_folder(const std::filesystem::path& name, FileSystem& system = FileSystem::real());

/// The hidden folder beside it in which the pack is written.
std::filesystem::path unfinished_folder(const std::filesystem::path& out);

// In the folder: the pack, which is renamed to its final name, and the journal of its complete shards.
inline constexpr const char* kPack = "pack";
inline constexpr const char* kJournal = "complete";

/// The hidden folder in which a pack is written until it is published. It belongs to one call at a time; a killed call
/// leaves it to the next one. Threads: one at a time.
class Unfinished {
 public:
  /// Creates the folder, or takes the one that a killed call left. Throws Error naming `what` is being made,
  /// if another process is making it.
  Unfinished(std::filesystem::path folder, const std::filesystem::path& what, FileSystem& system);
  /// Removes the folder and its content, unless keep() was called.
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// Leaves the folder for the next call.
  void keep() { keep_ = true; }

 private:
  std::filesystem::path folder_;
  FileSystem& system_;
  UniqueFd lock_;
  bool keep_ = false;
};

/// Gives the complete pack its name.
void publish_pack(const std::filesystem::path& pack, const std::filesystem::path& out, FileSystem& system);

}  // namespace lockstep::pack
