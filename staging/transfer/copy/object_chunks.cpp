#include "staging/transfer/copy/object_chunks.h"

#include <algorithm>

namespace lockstep::transfer {

ObjectChunks::ObjectChunks(FileSystem& system, const std::filesystem::path& folder,
                           const std::vector<ManifestFile>& files, const ChunkJournal::Content& journal,
                           std::uint32_t chunk_bytes)
    : plan_(sizes_of(files), chunk_bytes),
      files_(system, folder, names_of(files), plan_),
      digests_(plan_.size()) {
  std::vector<bool> known(plan_.size());
  for (const DoneChunk& done : journal.chunks) {
    if (done.chunk >= plan_.size()) continue;
    digests_[done.chunk] = done.digest;
    known[done.chunk] = true;
  }
  has_digests_ =
      journal.chunk_bytes == chunk_bytes && std::find(known.begin(), known.end(), false) == known.end();
}

}  // namespace lockstep::transfer
