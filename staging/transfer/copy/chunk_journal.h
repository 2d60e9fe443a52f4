// What a copy has made durable so far, so that a killed one is continued: a file of records, each a chunk and
// its digest, written after the chunk's bytes were synced. It is a hint, not a promise: who continues reads
// the chunks back and takes only those that still have their digest. Of files that no index describes it
// stays in the object, for who checks single pieces of them later.
//
//   "LOCKJRNL" version:u32 chunk_bytes:u32 plan:16 bytes       the plan's digest, as of the list of files
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

/// Its name, beside an object's files.
inline constexpr const char* kJournalName = "journal";

struct DoneChunk {
  std::uint64_t chunk = 0;
  pack::Digest digest{};
};

class ChunkJournal {
 public:
  /// What a journal says, up to where it is torn or damaged.
  struct Content {
    std::uint32_t chunk_bytes = 0;  ///< 0 where there is none
    pack::Digest plan{};
    std::vector<DoneChunk> chunks;  ///< of one chunk the last is what is there
  };
  static Content read(FileSystem& system, const std::filesystem::path& file);

  /// Continues the journal in `file` where it is of this plan, and begins it anew otherwise.
  ChunkJournal(FileSystem& system, std::filesystem::path file, const pack::Digest& plan,
               std::uint32_t chunk_bytes);

  /// What it held when it was opened; a torn end is left out.
  const std::vector<DoneChunk>& found() const { return found_; }

  /// Adds records, durably. The chunks' bytes are synced already.
  void add(const std::vector<DoneChunk>& chunks);

 private:
  FileSystem& system_;
  std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t end_ = 0;
  std::vector<DoneChunk> found_;
};

}  // namespace lockstep::transfer
