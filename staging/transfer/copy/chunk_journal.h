// The journal of a copy: which chunks are durable, so that a copy that was killed can be continued. Each
// record is a chunk and its digest, and is written after the chunk's bytes were synced. The journal is a
// hint, not a promise: the next copy reads the chunks back and keeps those that still have their digest. It
// stays in the object: single pieces of it can be checked later, and chunks are sent to other nodes with their
// digests.
//
//   "LOCKJRNL" version:u32 chunk_bytes:u32 plan:16 bytes       the digest of the list of files
//   { chunk:u64 digest:16 bytes check:u64 }...                 check: XXH3-64 of the 24 bytes before it
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/digest.h"

namespace lockstep::transfer {

/// The journal lies beside the folder of an object's files.
inline constexpr const char* kJournalName = "journal";

struct DoneChunk {
  std::uint64_t chunk = 0;
  pack::Digest digest{};
};

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

}  // namespace lockstep::transfer
