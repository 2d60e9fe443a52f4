// What create() and append() are told, and what they tell.
//
// Threads: values.
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
  std::filesystem::path folder;                          ///< what the files' names are relative to
  std::vector<std::string> files;                        ///< in the order of the samples (file_list.h)
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< a shard ends before it would grow past this
  int threads = 0;                                       ///< that open and read files; 0: as many as help
  std::function<void(std::size_t files, std::uint64_t bytes)> progress;  ///< done so far
  std::function<void(const std::string& line)> notice;  ///< what a person should know: that it is continued
  const std::atomic<bool>* stop =
      nullptr;                   ///< set to true, from a signal handler too, it ends the call: Stopped
  FileSystem* system = nullptr;  ///< what is written goes through it; the real one if not set
};

struct PackingResult {
  std::size_t samples = 0;
  std::size_t parts = 0;
  std::size_t shards = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t pack_bytes = 0;     ///< of the shards
  std::size_t continued_files = 0;  ///< that an earlier call had packed
};

}  // namespace lockstep::pack
