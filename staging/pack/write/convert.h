// Converts any format that open() reads to tar shards (also to shard a pack again) or to Megatron-Core's .bin and .idx.
// Samples are compared with the source's digests when they are read, and the written copy is read back and compared
// with the source. The result appears under its name when it is complete and synced.
//
// Threads: safe from any thread and process; of two calls for the same target the second is refused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

struct ConvertOptions {
  enum class To { tar, megatron };
  std::filesystem::path source;  ///< anything that open() takes
  std::filesystem::path out;     ///< a new folder; for Megatron, the prefix of the two files
  OpenOptions open;              ///< of the source
  To to = To::tar;
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< of tar shards, as for create()
  /// The kind of parts that have none (in all formats but tar); "" means "tok" for tokens, else
  /// "bin".
  std::string kind;
  std::function<void(std::uint64_t samples)> progress;  ///< done so far
  const std::atomic<bool>* stop = nullptr;              ///< once true, the call ends with Stopped (create.h)
  FileSystem* system = nullptr;                         ///< tar shards are written through it
};

struct ConvertResult {
  std::size_t samples = 0;
  std::size_t files = 0;  ///< shards, or 1
  std::uint64_t payload_bytes = 0;
};

/// Throws Error naming a sample that cannot be converted: its digest differs, a number does not fit into the
/// target's tokens, or its key appears twice. Also throws Error if an interrupted create() for the same
/// folder could still be continued.
ConvertResult convert(const ConvertOptions& options);

/// Makes a sample's name in a tar file from a key of any bytes. Bytes that would lead to another folder,
/// split the name at another dot, or make it invalid are written as %XX. Different keys give different names.
std::string member_key(std::string_view key);

/// Converts tokens of any type to those of a tar pack, which are unsigned and have 2 or 4 bytes.
class TarTokens {
 public:
  explicit TarTokens(TokenType from);

  /// 2 or 4; 0 if the samples are not integers and are not converted.
  int bytes() const { return bytes_; }
  /// Throws Error naming `where` if a number is negative or too large. The result is valid until the next
  /// call.
  std::span<const std::byte> convert(std::span<const std::byte> payload, const std::string& where);

 private:
  TokenType from_;
  int bytes_ = 0;
  bool as_it_is_ = true;
  std::vector<std::int64_t> numbers_;
  std::vector<std::byte> converted_;
};

}  // namespace lockstep::pack
