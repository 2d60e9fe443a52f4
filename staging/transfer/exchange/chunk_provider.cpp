#include "staging/transfer/exchange/chunk_provider.h"

#include <chrono>
#include <thread>

namespace lockstep::transfer {

bool CopyProvider::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  digest = copy_.store().digest(chunk);
  return copy_.store().read(chunk, into);
}

ObjectProvider::ObjectProvider(std::uint32_t self, const std::filesystem::path& folder,
                               const std::vector<ManifestFile>& files, std::uint32_t chunk_bytes)
    : self_(self),
      plan_(sizes_of(files), chunk_bytes),
      files_(FileSystem::real(), folder, names_of(files), plan_) {
}

std::optional<std::size_t> ObjectProvider::wait_for(std::size_t n, int milliseconds) {
  if (n < plan_.size()) return n;
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return {};
}

bool ObjectProvider::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (!files_.read(chunk, into)) return false;
  digest = pack::digest_of(into);
  return true;
}

}  // namespace lockstep::transfer
