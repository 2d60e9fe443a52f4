// The chunks of an object of the cache, with the digests that were kept when it was published (chunk_journal.h): a receiver of
// a chunk finds damage, and nothing is hashed before it is sent.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/copy/chunk_journal.h"
#include "staging/transfer/copy/local_files.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

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

}  // namespace lockstep::transfer
