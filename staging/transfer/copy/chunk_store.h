// The part of an object that a copy has so far: the chunks on disk and their digests, the journal of the durable ones, and the
// digest of each file, which is computed in the order of its bytes while they arrive. Chunks may arrive in any order and from
// several threads, and many files may be incomplete at the same time. A chunk that is early in its file stays in memory for a
// moment, or is read back from the disk when its turn comes.
//
// Threads: ObjectChunks, and put(), read(), has() and digest() of ChunkStore from any; the rest belongs to one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/digest.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/copied_files.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// The journal lies beside the folder of an object's files.
inline constexpr const char* kJournalName = "journal";

struct DoneChunk {
  std::uint64_t chunk = 0;
  pack::Digest digest{};
};

/// Which chunks are durable, so that a copy that was killed can be continued. A record is written after its chunk's bytes were
/// synced. It is a hint, not a promise: the next copy reads the chunks back and keeps those that still have their digest. The
/// journal stays in the object, so that single pieces can be checked later and sent to other nodes with their digests.
///
///   "LOCKJRNL" version:u32 chunk_bytes:u32 plan:16 bytes       the digest of the list of files
///   { chunk:u64 digest:16 bytes check:u64 }...                 check: XXH3-64 of the 24 bytes before it
class ChunkJournal {
 public:
  /// The records up to the first one that is torn or damaged.
  struct Content {
    std::uint32_t chunk_bytes = 0;  ///< 0 if there is no journal
    pack::Digest plan{};
    std::vector<DoneChunk> chunks;  ///< if a chunk occurs several times, the last record holds
  };
  static Content read(FileSystem& system, const std::filesystem::path& file);

  /// Continues the journal in `file` if it belongs to this plan; begins a new one otherwise.
  ChunkJournal(FileSystem& system, std::filesystem::path file, const pack::Digest& plan,
               std::uint32_t chunk_bytes);

  /// The records that it had when it was opened, without a torn end.
  const std::vector<DoneChunk>& found() const { return found_; }

  /// Adds records durably. The chunks' bytes must be synced already.
  void add(const std::vector<DoneChunk>& chunks);

 private:
  FileSystem& system_;
  std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t end_ = 0;
  std::vector<DoneChunk> found_;
};

/// The chunks of an object of the cache, with the digests in its journal: a receiver of a chunk finds damage, and nothing is
/// hashed before it is sent.
class ObjectChunks {
 public:
  ObjectChunks(FileSystem& system, const std::filesystem::path& folder,
               const std::vector<ManifestFile>& files, const ChunkJournal::Content& journal,
               std::uint32_t chunk_bytes);
  const ChunkPlan& plan() const { return plan_; }
  /// False if the object was copied in other chunks, or if its journal is torn.
  bool has_digests() const { return has_digests_; }
  /// False if it cannot be read, or if its digest is not known.
  bool read(std::size_t chunk, std::span<std::byte> into) { return has_digests_ && files_.read(chunk, into); }
  pack::Digest digest(std::size_t chunk) const { return digests_[chunk]; }

 private:
  ChunkPlan plan_;
  LocalFiles files_;
  std::vector<pack::Digest> digests_;
  bool has_digests_ = false;
};

class ChunkStore {
 public:
  struct Options {
    std::filesystem::path journal;
    pack::Digest plan{};           ///< digest of the list of files; a journal of another list is not used
    std::uint64_t mark_bytes = 0;  ///< the bytes after which the chunks on disk are synced and recorded
    /// A file is complete and has this digest. Returns false if the digest is wrong; the file is then in
    /// damaged(). Called by the threads that put chunks, one at a time.
    std::function<bool(std::size_t file, const pack::Digest&)> complete;
  };

  /// The references must outlive this object.
  ChunkStore(FileSystem& system, LocalFiles& local, const ChunkPlan& plan, CopyMemory& memory,
             Options options);

  /// Takes over the chunks of an earlier copy that still have the digest in the journal; returns their bytes.
  std::uint64_t resume(int threads);

  ~ChunkStore();

  /// Writes a chunk that was not put before. With `in_background` a due sync runs in another thread; if it fails, the next
  /// call throws.
  void put(std::size_t chunk, LentChunk data, const pack::Digest& digest, bool in_background);

  bool has(std::size_t chunk) const;
  /// Of a chunk that was put.
  pack::Digest digest(std::size_t chunk) const;
  /// Reads a chunk that was put back from the disk.
  bool read(std::size_t chunk, std::span<std::byte> into) { return local_.read(chunk, into); }

  /// Makes the chunks durable that were put so far.
  void mark();
  /// After all chunks were put: hashes the rest, and makes everything durable.
  void finish();
  /// Files for which `complete` returned false.
  const std::vector<std::size_t>& damaged() const { return damaged_; }
  /// The digest of a chunk as it is on the disk now.
  pack::Digest read_digest(std::size_t chunk);
  /// Replaces a chunk. The journal is wrong until mark().
  void replace(std::size_t chunk, const LentChunk& data, const pack::Digest& digest);
  pack::Digest file_digest(std::size_t file) const { return file_digests_[file]; }

 private:
  void written(std::size_t chunk, const pack::Digest& digest, bool in_background);
  void journal_in_background();
  void join_marker();
  void record();
  /// The hash of a file that takes several chunks, or of the small files in one chunk.
  struct Hashing {
    std::size_t next = 0;  ///< the chunk to hash next
    bool busy = false;     ///< some thread is hashing
    pack::Hasher hasher;   ///< belongs to that thread
  };
  std::uint32_t first_file(std::size_t chunk) const { return plan_.extents(chunk)[0].file; }
  Hashing& hashing_of(std::size_t chunk);
  void keep_early(std::size_t chunk, LentChunk data);
  LentChunk take_early(std::size_t chunk);
  void hash_from(Hashing& hashing, LentChunk data);
  void hash_chunk(pack::Hasher& hasher, std::size_t chunk, std::span<const std::byte> data);

  FileSystem& system_;
  LocalFiles& local_;
  const ChunkPlan& plan_;
  CopyMemory& memory_;
  Options options_;
  ChunkJournal journal_;

  mutable std::mutex mutex_;
  std::vector<bool> present_;
  std::vector<pack::Digest> digests_;
  std::vector<bool> hashed_;
  std::map<std::uint32_t, Hashing> hashing_;  // by first file; those that have begun and are not complete
  std::map<std::size_t, LentChunk> early_;    // chunks before which another one must be hashed
  std::vector<DoneChunk> unmarked_;
  std::set<std::uint32_t> unsynced_;
  std::uint64_t unmarked_bytes_ = 0;
  bool marking_ = false;
  std::exception_ptr mark_failed_;
  std::mutex marker_mutex_;
  std::thread marker_;

  std::mutex complete_mutex_;  // guards damaged_, and lets one file be completed at a time
  std::vector<pack::Digest> file_digests_;
  std::vector<std::size_t> damaged_;
};

}  // namespace lockstep::transfer
