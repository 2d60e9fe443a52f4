// The chunks of an object of the cache, for a successor. They are sent with the digests that were kept when the object was
// published (copy/chunk_journal.h), so a receiver finds damage, and nothing is hashed before it is sent.
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <filesystem>
#include <span>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/copy/local_files.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

class ObjectChunks {
 public:
  ObjectChunks(FileSystem& system, const std::filesystem::path& folder,
               const std::vector<ManifestFile>& files, std::uint32_t chunk_bytes);
  const ChunkPlan& plan() const { return plan_; }
  /// False if it cannot be read, or if its digest is not known: the object was copied in other chunks.
  bool read(std::size_t chunk, std::span<std::byte> into) { return has_digests_ && files_.read(chunk, into); }
  pack::Digest digest(std::size_t chunk) const { return digests_[chunk]; }

  /// A chunk could not be read, or was not that of its digest.
  void note_damage() { damaged_ = true; }
  bool damaged() const { return damaged_; }

 private:
  ChunkPlan plan_;
  LocalFiles files_;
  std::vector<pack::Digest> digests_;
  bool has_digests_ = false;
  std::atomic<bool> damaged_ = false;
};

}  // namespace lockstep::transfer
