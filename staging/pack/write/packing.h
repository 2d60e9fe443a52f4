// The options and results of packing files.
//
// Threads: safe from any.
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

struct PackingOptions {
  std::filesystem::path folder;    ///< the files' names are relative to it
  std::vector<std::string> files;  ///< in the order of the samples (file_list.h)
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

struct PackingResult {
  std::size_t samples = 0;
  std::size_t parts = 0;
  std::size_t shards = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t pack_bytes = 0;     ///< of the shards
  std::size_t continued_files = 0;  ///< files that an earlier call had packed
};

}  // namespace lockstep::pack
