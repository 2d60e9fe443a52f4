// Puts sources into this node's cache: what is there already is verified and reused, what is missing
// is copied in parallel, hashed on the way, against the pack's index where it has one, and published whole or
// not at all. Two processes that want the same source copy it once.
//
// Threads: put() may be called from several threads and processes at once, also on the same cache; it starts
// its own threads and has joined them when it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "staging/cache/store.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/hang_watch.h"

namespace lockstep::transfer {

/// What a copy that is already in the cache is checked for before it is used.
enum class Verify {
  quick,  ///< sizes, the index's checksum, and a bounded number of samples
  full,   ///< every byte
  off,    ///< only that it is there
};

/// Reads "quick", "full" or "off". Throws UsageError naming the good values.
Verify parse_verify(std::string_view text);

/// How far the copy of a source is.
struct PutProgress {
  std::uint64_t done = 0;  ///< bytes
  std::uint64_t total = 0;
  std::uint64_t from_source = 0;
  std::uint64_t from_peers = 0;
};

class Circle;

struct PutResult;

struct PutOptions {
  /// The user's store, made if missing (its parent must exist).
  std::filesystem::path cache_dir;
  /// What the store may hold.
  cache::StoreOptions limits;
  /// The store that an admin fills, looked into first; "" for none.
  std::filesystem::path shared;
  /// A file in the store's leases/held that somebody keeps locked while the data is used; "" for none.
  std::filesystem::path lease;
  Verify verify = Verify::quick;
  /// Chunks copied at a time, 1 to 32; 0 chooses.
  int threads = 0;
  /// Bytes read from sources in a second, all copies into this store together; 0: no limit.
  std::uint64_t bandwidth = 0;
  /// Bytes done and to do of the source being copied; called from the copying threads, one at a time.
  std::function<void(const std::string& source, std::uint64_t done, std::uint64_t total)> progress;
  /// The same in full.
  std::function<void(const std::string& source, const PutProgress&)> detailed_progress;
  /// A source is done; where a later one fails, this one was put all the same.
  std::function<void(const PutResult& result)> done;
  /// How long another process that copies the same source may make no progress before this one makes a copy
  /// of its own. Where a source or a disk hangs it needs one patience to notice that itself.
  std::chrono::milliseconds copier_patience = 2 * HangWatch::patience(1);
  /// Called once before waiting for another process that is copying the same source.
  std::function<void(const std::string& source)> waiting;
  /// The names of a source's files are known; copying begins.
  std::function<void(const std::string& source, const std::vector<std::string>& names)> listed;
  /// A file of a source is complete and verified, under this name below the source's folder; the local copy
  /// is not published yet, but may be linked to. Called from the copying threads, one at a time.
  std::function<void(const std::string& source, const std::string& name, const std::filesystem::path& copy)>
      file;
  /// The nodes that put the same sources at the same time, in the same order, and share what they read.
  Circle* circle = nullptr;
  /// Where set, it hears of every call at a source, and of those that change the cache.
  HangWatch* watch = nullptr;
  /// Where set, all file operations that change the cache go through it (fault injection).
  FileSystem* file_system = nullptr;
  /// The unit of transfer, and after how many bytes the copy is synced so that a killed one goes on from
  /// there. All nodes of a circle have the same.
  std::uint32_t chunk_bytes = ChunkPlan::kChunkBytes;
  std::uint64_t mark_bytes = std::uint64_t{256} << 20U;
};

struct PutResult {
  std::string source;             ///< as given
  std::filesystem::path path;     ///< the local copy: a folder for a folder or a pattern, a file for one file
  std::string object;             ///< its name in the cache
  std::uint64_t bytes = 0;        ///< of the local copy: all its files
  std::uint64_t from_source = 0;  ///< bytes read from the source to get it
  std::uint64_t from_peers = 0;   ///< bytes that came from other nodes
  std::uint64_t resumed = 0;      ///< bytes that an earlier, killed copy had left
  bool hit = false;               ///< it was there, and good
  bool shared = false;            ///< it is in the shared store
  double seconds = 0;             ///< wall time, waiting included
  std::string note;               ///< what a person should know (a damaged copy was replaced), or ""
};

/// Puts every source, in order: a folder, a file, or a pattern of files ("a-{00..31}.tar", "a-*.tar"). Throws
/// Error at the first that cannot be put, naming source, shard and reason; nothing unfinished stays visible.
std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options);

}  // namespace lockstep::transfer
