// Puts packed sources into this node's cache: what is there already is verified and reused, what is missing
// is copied in parallel, hashed on the way against the pack's index, and published whole or not at all. Two
// processes that want the same source copy it once.
//
// Threads: put() may be called from several threads and processes at once, also on the same cache; it starts
// its own threads and has joined them when it returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {
class FileSystem;
}

namespace lockstep::transfer {

/// What a copy that is already in the cache is checked for before it is used.
enum class Verify {
  quick,  ///< sizes, the index's checksum, and a bounded number of samples
  full,   ///< every byte
  off,    ///< only that it is there
};

/// Reads "quick", "full" or "off". Throws UsageError naming the good values.
Verify parse_verify(std::string_view text);

struct PutOptions {
  /// The user's store, made if missing (its parent must exist).
  std::filesystem::path cache_dir;
  Verify verify = Verify::quick;
  /// Shards copied at a time, 1 to 32; 0 chooses. Each takes one buffer of 4 MiB.
  int threads = 0;
  /// Bytes done and to do of the source being copied; called from the copying threads, one at a time.
  std::function<void(const std::string& source, std::uint64_t done, std::uint64_t total)> progress;
  /// Called once before waiting for another process that is copying the same source.
  std::function<void(const std::string& source)> waiting;
  /// Where set, all file operations that change the cache go through it (fault injection).
  FileSystem* file_system = nullptr;
};

struct PutResult {
  std::string source;          ///< as given
  std::filesystem::path path;  ///< the local copy: a folder for a folder or a pattern, a file for one shard
  std::string object;          ///< its name in the cache
  std::uint64_t bytes = 0;     ///< of the local copy: shards and index
  std::uint64_t from_source = 0;  ///< bytes read from the source's shards and index to get it
  std::uint64_t from_peers = 0;   ///< bytes that came from other nodes
  bool hit = false;               ///< it was there, and good
  double seconds = 0;             ///< wall time, waiting included
  std::string note;               ///< what a person should know (a damaged copy was replaced), or ""
};

/// Puts every source, in order: a pack's folder, one of its shards, or a pattern of shards ("a-{00..31}.tar",
/// "a-*.tar"). Throws Error at the first that cannot be put, naming source, shard and reason; nothing
/// unfinished stays visible.
std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options);

}  // namespace lockstep::transfer
