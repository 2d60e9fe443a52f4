// Copies the files of an object into its incoming folder. Several threads read chunks at the source, hash and
// write them, within one budget of memory. The chunks that an earlier, killed copy left are checked and taken
// over.
//
// Memory: at most 136 MiB of buffers, and 60 bytes for each chunk of 4 MiB (15 MiB for each TiB).
//
// Threads: one at a time; run() starts its own and has joined them when it returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "staging/transfer/copy/chunk_store.h"
#include "staging/transfer/copy/limit.h"
#include "staging/transfer/copy/local_files.h"
#include "staging/transfer/copy/source_files.h"
#include "staging/transfer/copy/source_retry.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

std::vector<std::uint64_t> sizes_of(const std::vector<ManifestFile>& files);
std::vector<std::string> names_of(const std::vector<ManifestFile>& files);

struct CopyOptions {
  std::filesystem::path source;   ///< folder of the files
  std::filesystem::path target;   ///< folder for the copies
  std::filesystem::path journal;  ///< file of the chunks that are durable
  int threads = 0;                ///< up to 32; 0 chooses
  std::uint32_t chunk_bytes = ChunkPlan::kChunkBytes;
  std::uint64_t mark_bytes = std::uint64_t{256} << 20U;
  std::chrono::milliseconds source_pause = kSourcePause;
  CopyMemory* memory = nullptr;  ///< shared with other copies; nullptr: this copy has its own
  std::size_t buffers = 16;      ///< chunks in memory at once, without `memory`
  std::function<void(std::uint64_t bytes)> copied;  ///< after every chunk, from any thread
  /// Takes the memory of a chunk that is stored and hashed; from any thread.
  std::function<void(std::size_t chunk, ChunkBuffers::Buffer)> hashed;
  std::function<void(std::size_t file)>
      complete;  ///< a file is there and verified; from any thread, one at a time
};

class Copy {
 public:
  /// The references must outlive this object. Makes folders, and takes over the chunks of an earlier copy.
  Copy(FileSystem& system, const std::vector<ManifestFile>& files, Limit& limit, CopyOptions options);

  /// Copies everything from the source. Throws Error naming the file that could not be copied; the chunks
  /// that are durable stay for the next copy.
  void run();

  // For a copy that gets chunks from other nodes too (staging/transfer/exchange/exchange.h):

  const ChunkPlan& plan() const { return plan_; }
  ChunkStore& store() { return store_; }
  ChunkBuffers& buffers() { return memory_.chunks; }
  int threads() const { return threads_; }
  /// Reads one chunk at the source and stores it.
  void read_from_source(std::size_t chunk);
  /// Stores a chunk that came from elsewhere. `waiting`: another node waits for the caller, so a sync must not delay
  /// it.
  void take(std::size_t chunk, ChunkBuffers::Buffer data, const pack::Digest& digest, bool waiting = true);
  /// Hashes and syncs the rest, and checks that the source has not changed. Files with a wrong digest are
  /// compared with the source chunk by chunk; `wrong` is called for each chunk that differs. Throws Error if
  /// the source itself does not match its index.
  void finish(const std::function<void(std::size_t chunk)>& wrong = {});

  /// Whether the source could not be read; the chunks that were copied are good then.
  bool source_failed() const { return source_.failed(); }
  /// Makes the chunks durable that are copied so far, for the next copy. No thread may be copying.
  void mark() { store_.mark(); }

  /// Bytes taken over from an earlier copy.
  std::uint64_t resumed_bytes() const { return resumed_; }
  std::uint64_t bytes_from_source() const { return source_.bytes_read(); }
  pack::Digest file_digest(std::size_t file) const { return store_.file_digest(file); }

 private:
  bool check(std::size_t file, const pack::Digest& digest);
  void repair(std::size_t file, const std::function<void(std::size_t chunk)>& wrong);
  [[noreturn]] void damaged(std::size_t file, const pack::Digest& digest) const;

  const std::vector<ManifestFile>& files_;
  CopyOptions options_;
  ChunkPlan plan_;
  int threads_;
  std::unique_ptr<CopyMemory> own_memory_;
  CopyMemory& memory_;
  SourceFiles source_;
  LocalFiles local_;
  ChunkStore store_;
  std::uint64_t resumed_ = 0;
};

}  // namespace lockstep::transfer
