// From any format that open() reads to one that can be written: tar shards (to shard anew, too) or
// Megatron-Core's .bin and .idx. What is read is checked against the digests that the source has, what is
// written against what was read; the result appears under its name when it is complete and synced.
//
// Threads: safe from any thread and process; two calls for the same target do not mix, the second is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "common/file_system.h"

namespace lockstep::pack {

struct ConvertOptions {
  enum class To { tar, megatron };
  std::filesystem::path source;  ///< anything that open() takes
  std::filesystem::path out;     ///< a new folder; for Megatron the prefix of the two files
  To to = To::tar;
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< of tar shards, as create() has it
  /// Of parts that have none (all formats but tar and MDS); "" chooses "tok" for tokens and "bin".
  std::string kind;
  std::function<void(std::uint64_t samples)> progress;  ///< done so far
  const std::atomic<bool>* stop = nullptr;              ///< set to true it ends the call: Stopped (packing.h)
  FileSystem* system = nullptr;                         ///< what tar shards are written through
};

struct ConvertResult {
  std::size_t samples = 0;
  std::size_t files = 0;  ///< shards, or 1
  std::uint64_t payload_bytes = 0;
};

/// Throws Error naming the sample that cannot be converted: digests that differ, numbers that the target's
/// tokens cannot hold, keys that come twice. An interrupted create() for the same folder is not thrown away:
/// it is an Error, too.
ConvertResult convert(const ConvertOptions& options);

/// A sample's name in a tar file, from a key of any bytes: what would leave the folder, split at another dot
/// or not be a name at all is written as %XX. Different keys stay different.
std::string member_key(std::string_view key);

}  // namespace lockstep::pack
