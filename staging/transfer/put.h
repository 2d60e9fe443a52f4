// Puts sources into this node's cache. An existing copy is verified and reused. Otherwise the source is copied in parallel and
// hashed on the way, the hashes are compared with the pack's index if it has one, and the copy is published as a whole or not
// at all. Two processes that want the same source copy it once.
//
// Threads: several threads and processes may call put() at the same time, also for the same cache. It starts its own threads
// and has joined them when it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "staging/cache/store.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/source.h"
#include "staging/transfer/supervisor.h"

namespace lockstep::transfer {

/// How a copy that is already in the cache is checked before it is used.
enum class Verify {
  quick,  ///< sizes, the index's checksum, and a bounded number of samples
  full,   ///< every byte
  off,    ///< whether it exists
};

/// Parses "quick", "full" or "off". Throws UsageError that names these values.
Verify parse_verify(std::string_view text);

/// Progress of the copy of one source, in bytes.
struct PutProgress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  std::uint64_t from_source = 0;
  std::uint64_t from_peers = 0;
};

class PeerGroup;

struct PutResult;

/// What put() tells its caller. An empty function is not called.
struct PutEvents {
  /// Called once, before waiting for another process that copies the same source.
  std::function<void(const std::string& source)> waiting{};
  /// A chunk of a source is copied; called from the copying threads, one at a time.
  std::function<void(const std::string& source, const PutProgress&)> progress{};
  /// The names of a source's files are known, and copying begins.
  std::function<void(const Source& source, const std::vector<std::string>& names)> listed{};
  /// A file is complete and verified; `name` is its path in the source's folder. The local copy is not
  /// published yet, but may be linked to. Called from the copying threads, one at a time.
  std::function<void(const std::string& source, const std::string& name, const std::filesystem::path& copy)>
      file{};
  /// A source is done. It stays in the cache even if a later one fails.
  std::function<void(const PutResult& result)> done{};
  /// Called before a source is put that is not what this node has staged.
  std::function<void(const std::string& source)> stale{};
  /// Takes a line for the user about a source that is not put.
  std::function<void(const std::string&)> notice{};
};

/// The units of a copy. The defaults are for packs of gigabytes; tests take small ones.
struct PutSizes {
  /// The unit of transfer, the same on all nodes of a group.
  std::uint32_t chunk_bytes = ChunkPlan::kChunkBytes;
  /// After that many bytes the copy is synced, so that a killed one continues from there. The same on all nodes.
  std::uint64_t mark_bytes = std::uint64_t{256} << 20U;
  std::size_t buffers = 16;  ///< chunks in memory at once
  /// Connections to the predecessor at a time, one thread each; 0: as many as this machine's cores and the data make
  /// sensible (RingPut::max_lanes()).
  std::size_t lanes = 0;
};

struct PutOptions {
  /// The user's store, created if it is missing (its parent must exist).
  std::filesystem::path cache_dir;
  /// Limits of the store's size.
  cache::StoreOptions limits;
  /// The store that an admin fills, which is searched first; "" for none.
  std::filesystem::path shared;
  /// A file in the store's leases/held that another process keeps locked while the data is used; "" for none.
  std::filesystem::path lease;
  Verify verify = Verify::quick;
  /// Chunks copied at the same time, 1 to 32; 0: chosen automatically.
  int threads = 0;
  /// Bytes read from sources per second by all copies into this store together; 0: no limit.
  std::uint64_t bandwidth = 0;
  PutEvents on;
  /// How long another process that copies the same source may show no sign of life before this put fails, with a line
  /// that names the lock. The default is twice the time for a system call, so that a hanging process can first report its error. 0: no
  /// limit.
  std::chrono::milliseconds copier_timeout = 2 * default_call_timeout(1);
  /// Before the first retry of a read that fails because the source cannot be reached (retry_source()).
  std::chrono::milliseconds source_pause = kSourcePause;
  /// The nodes that put the same sources at the same time, in the same order, and share the chunks they read.
  PeerGroup* peers = nullptr;
  /// Only with `peers`: the versions (PutResult) of the sources that this node has staged for the job already. A source is
  /// left out if all nodes have staged the version that is at the source now.
  std::map<std::string, std::string> staged;
  PutSizes sizes;
  /// If set, all file operations that change the cache go through it (fault injection).
  FileSystem* file_system = nullptr;
};

/// The local copy of a source.
struct CopyFacts {
  std::filesystem::path path{};  ///< a folder for a folder or a pattern, a file for one file
  std::string object{};          ///< its name in the cache
  std::uint64_t bytes = 0;       ///< of all its files
  bool hit = false;              ///< it was there before, and is good
  bool shared = false;           ///< it is in the shared store
  std::string version{};         ///< source_version() (source.h) of what was copied
};

struct PutResult : CopyFacts {
  std::string source;             ///< as given
  std::uint64_t from_source = 0;  ///< bytes read from the source to get it
  std::uint64_t from_peers = 0;   ///< bytes that came from other nodes
  std::uint64_t resumed = 0;      ///< bytes that an earlier, killed copy had left
  double seconds = 0;             ///< wall time, including waiting
  std::string note;               ///< a message for the user (a damaged copy was replaced), or ""
};

/// Puts every source, in order: a folder, a file, or a pattern of files ("a-{00..31}.tar", "a-*.tar"). Throws
/// Error for the first that cannot be put, with source, shard and reason. Incomplete copies are never
/// visible.
std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options);

}  // namespace lockstep::transfer
