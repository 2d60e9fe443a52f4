// The last steps of a put: a copy of a source's files in the cache, until it is published as an object. Several threads
// read chunks at the source, hash and write them, within one budget of memory. The chunks that an earlier, killed copy left
// are checked and taken over.
//
// Memory: at most 136 MiB of buffers, and 60 bytes for each chunk of 4 MiB (15 MiB for each TiB).
//
// Threads: load() and take() from any; the rest belongs to one thread. run() and publish() start their own and have
// joined them when they return.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/cache/store.h"
#include "staging/transfer/copy/chunk_store.h"
#include "staging/transfer/copy/copied_files.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/source.h"
#include "staging/transfer/source_lookup.h"

namespace lockstep::transfer {

class SideIndexes;

/// A place in the cache with the list of the source's files: a pack's index, or names and sizes.
struct BegunCopy {
  Manifest manifest;
  CopyLock lock;
  std::unique_ptr<cache::Incoming> incoming;
};

/// Lists the files of a source that another node has identified. Throws Error if this node sees another version.
void rescan_source(const PutContext& context, Manifest& manifest);

/// Reads the list at the source. Throws Error.
BegunCopy begin_copy(const PutContext& context, const Manifest& manifest, CopyLock lock);
/// Takes the list from another node. Throws Error.
BegunCopy begin_copy_with_list(const PutContext& context, const Manifest& manifest, CopyLock lock,
                               const std::string& list);

/// The list of files for other nodes; `files` is the folder of the copy.
std::string list_text(const Manifest& manifest, const std::filesystem::path& files);

/// A chunk in memory, with its digest.
struct LoadedChunk {
  LentChunk data;
  pack::Digest digest{};
};

class NewCopy {
 public:
  /// Makes room for the files and takes over what an earlier process has copied. `check_source`: checks that
  /// the source has all files of a pack. Throws Error.
  NewCopy(const PutContext& context, BegunCopy begun, bool check_source);
  /// Keeps what is copied for the next call if the source could not be read.
  ~NewCopy();
  NewCopy(const NewCopy&) = delete;
  NewCopy& operator=(const NewCopy&) = delete;

  /// Copies everything from the source. Throws Error naming the file that could not be copied; the chunks
  /// that are durable stay for the next copy.
  void run();

  // For a copy that gets chunks from other nodes too (staging/transfer/exchange/exchange.h):

  const ChunkPlan& plan() const { return plan_; }
  ChunkStore& store() { return *store_; }
  /// The number of threads that read from the source.
  int threads() const;
  /// Reads one chunk at the source.
  LoadedChunk load(std::size_t chunk);
  /// Stores a chunk. `waiting`: another node waits for the caller, so a sync must not delay it.
  void take(std::size_t chunk, LoadedChunk loaded, bool waiting = true);
  /// Hashes and syncs the rest, and checks that the source has not changed. Files with a wrong digest are
  /// compared with the source chunk by chunk; `wrong` is called for each chunk that differs. Throws Error if
  /// the source itself does not match its index.
  void finish(const std::function<void(std::size_t chunk)>& wrong = {});

  /// Keeps what is copied for the next call.
  void keep() noexcept;
  /// One digest of all files that no index describes; "" for a pack.
  std::string content() const;
  /// Looks at files that no index describes. Throws Error if one is not as it was when the list was made.
  void check_source_again() { source_.check_unchanged(true); }
  /// Makes it the object, durably, and leases it. Throws Error.
  FoundCopy publish();

 private:
  std::vector<ManifestFile> list_files();
  void check_shards_at_source() const;
  void report_names();
  void progressed(std::uint64_t bytes);
  bool check(std::size_t file, const pack::Digest& digest);
  void complete(const ManifestFile& file);
  void hand_out(const std::string& name, mode_t mode);
  void complete_unindexed(const ManifestFile& file);
  void repair(std::size_t file, const std::function<void(std::size_t chunk)>& wrong);

  const PutContext& context_;
  BegunCopy begun_;
  std::uint64_t list_bytes_ = 0;           // that are part of the object
  const std::vector<ManifestFile> files_;  // a pack's shards, without its index
  std::unique_ptr<SideIndexes> side_indexes_;
  ChunkPlan plan_;
  SourceFiles source_;
  LocalFiles local_;
  PutProgress progress_;  // under the reporting mutex
  std::unique_ptr<ChunkStore> store_;
};

/// All steps on one node. Throws Error.
FoundCopy find_or_copy(const PutContext& context, SourceLookup& lookup);

}  // namespace lockstep::transfer
