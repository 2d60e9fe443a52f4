// Makes a pack: many small files become a few tar shards and an index. Deterministic (the same files give the
// same bytes, whatever the number of threads) and atomic: the folder appears under its name when it is
// complete and synced.
//
// Threads: safe from any thread and process; two calls for the same folder do not mix, the second is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::pack {

struct CreateOptions {
  std::filesystem::path folder;    ///< what the files' names are relative to
  std::vector<std::string> files;  ///< in the order of the samples (file_list.h)
  std::filesystem::path out;       ///< the new pack; must not exist, or be an empty folder
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< a shard ends before it would grow past this
  int threads = 0;                                       ///< that open and read files; 0 chooses
  int token_bytes = 0;  ///< 2 or 4 where every file holds little-endian tokens of that size
  std::function<void(std::size_t files, std::uint64_t bytes)> progress;  ///< done so far
};

struct CreateResult {
  std::size_t samples = 0;
  std::size_t parts = 0;
  std::size_t shards = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t pack_bytes = 0;  ///< shards and index
};

/// Throws Error naming the file or folder that cannot be packed; an unfinished pack stays under a hidden name
/// beside `out` only when the process is killed, and the next call removes it.
CreateResult create(const CreateOptions& options);

}  // namespace lockstep::pack
