// What a node has of an object that is being copied: the chunks on its disk with their digests, the journal
// of those that are durable, and the digest of each file, computed in the order of its bytes while they pass
// by. Chunks may come in any order and from several threads; one that comes early is kept in memory for a
// moment and read back from the disk otherwise when its turn comes.
//
// Threads: put(), read(), has() and digest() from any; the rest belongs to one thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/copy/chunk_journal.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/local_files.h"

namespace lockstep::transfer {

class ChunkStore {
 public:
  struct Options {
    std::filesystem::path journal;
    pack::Digest plan{};           ///< of the list of files, so that a journal of another is not taken
    std::uint64_t mark_bytes = 0;  ///< after so many the chunks on disk are synced and written down
    /// A file's bytes are all there, with this digest. False where it is not what it should be; it is then
    /// listed in damaged(). Called by the threads that put chunks, in the order of the files.
    std::function<bool(std::size_t file, const pack::Digest&)> complete;
  };

  /// `local`, `plan` and `buffers` outlive it.
  ChunkStore(FileSystem& system, LocalFiles& local, const ChunkPlan& plan, ChunkBuffers& buffers,
             Options options);

  /// Takes over what an earlier copy left, as far as it is still what the journal says; returns its bytes.
  std::uint64_t resume(int threads, const std::function<void()>& alive = {});

  ~ChunkStore();

  /// Writes a chunk that nobody has put before. With `aside` what is to be synced is synced by a thread of
  /// its own; where that fails, the next call throws.
  void put(std::size_t chunk, ChunkBuffers::Buffer data, const pack::Digest& digest, bool aside = false);

  bool has(std::size_t chunk) const;
  /// Of a chunk that is there.
  pack::Digest digest(std::size_t chunk) const;
  /// Reads a chunk that is there back from the disk.
  bool read(std::size_t chunk, std::span<std::byte> into) { return local_.read(chunk, into); }

  /// Makes durable what is there.
  void mark();
  /// All chunks are there: hashes what is left, and makes everything durable.
  void finish();
  /// Files that `complete` refused.
  const std::vector<std::size_t>& damaged() const { return damaged_; }
  /// Of a chunk as it is on the disk now.
  pack::Digest read_digest(std::size_t chunk);
  /// Replaces a chunk; what `complete` was told about its files no longer holds.
  void replace(std::size_t chunk, const ChunkBuffers::Buffer& data, const pack::Digest& digest);
  /// Reads a file back and hashes it.
  pack::Digest rehash(std::size_t file);
  pack::Digest file_digest(std::size_t file) const { return file_digests_[file]; }
  void sync_file(std::size_t file) { local_.sync({static_cast<std::uint32_t>(file)}); }

 private:
  void written(std::size_t chunk, const pack::Digest& digest, bool aside);
  void mark_aside();
  void join_marker();
  void hash_from(std::size_t chunk, ChunkBuffers::Buffer data);
  void hash_chunk(std::size_t chunk, std::span<const std::byte> data);

  FileSystem& system_;
  LocalFiles& local_;
  const ChunkPlan& plan_;
  ChunkBuffers& buffers_;
  Options options_;
  ChunkJournal journal_;

  mutable std::mutex mutex_;
  std::vector<bool> there_;
  std::vector<pack::Digest> digests_;
  std::map<std::size_t, ChunkBuffers::Buffer> early_;  // chunks after the one that is hashed next
  std::size_t next_ = 0;                               // to be hashed
  bool hashing_ = false;
  std::vector<DoneChunk> unmarked_;
  std::set<std::uint32_t> unsynced_;
  std::uint64_t unmarked_bytes_ = 0;
  bool marking_ = false;
  std::exception_ptr mark_failed_;
  std::mutex marker_mutex_;
  std::thread marker_;

  pack::Hasher hasher_;  // of whoever has set hashing_
  std::vector<pack::Digest> file_digests_;
  std::vector<std::size_t> damaged_;
};

}  // namespace lockstep::transfer
