#include "staging/transfer/exchange/chunk_provider.h"

namespace lockstep::transfer {

ObjectChunks::ObjectChunks(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
                           std::uint32_t chunk_bytes)
    : plan_(sizes_of(files), chunk_bytes), files_(FileSystem::real(), folder, names_of(files), plan_) {
}

bool ObjectChunks::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (!files_.read(chunk, into)) return false;
  digest = pack::digest_of(into);
  return true;
}

}  // namespace lockstep::transfer
