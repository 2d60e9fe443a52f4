#include "staging/transfer/exchange/chunk_provider.h"

namespace lockstep::transfer {

ChunkProvider::State CopyProvider::state(std::size_t chunk, std::uint32_t asker) {
  if (chunk >= copy_.plan().size()) return State::elsewhere;
  if (copy_.store().has(chunk)) return State::here;
  return schedule_.expects(chunk, asker) ? State::coming : State::elsewhere;
}

bool CopyProvider::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  digest = copy_.store().digest(chunk);
  return copy_.store().read(chunk, into);
}

ObjectProvider::ObjectProvider(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
                               std::uint32_t chunk_bytes)
    : plan_(sizes_of(files), chunk_bytes), files_(FileSystem::real(), folder, names_of(files), plan_) {
}

ChunkProvider::State ObjectProvider::state(std::size_t chunk, std::uint32_t /*asker*/) {
  return chunk < plan_.size() ? State::here : State::elsewhere;
}

bool ObjectProvider::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (!files_.read(chunk, into)) return false;
  digest = pack::digest_of(into);
  return true;
}

}  // namespace lockstep::transfer
