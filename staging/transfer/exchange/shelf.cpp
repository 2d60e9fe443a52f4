#include "staging/transfer/exchange/shelf.h"

#include <algorithm>

namespace lockstep::transfer {

std::optional<std::uint32_t> CopyShelf::moved(std::size_t chunk) {
  const std::optional<std::size_t> to = work_.asked_for(chunk);
  if (!to) return {};
  return members_[*to];
}

bool CopyShelf::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  digest = copy_.store().digest(chunk);
  return copy_.store().read(chunk, into);
}

std::vector<std::size_t> CopyShelf::cede(std::uint32_t node) {
  constexpr std::size_t kAtOnce = 8;
  const auto member = std::find(members_.begin(), members_.end(), node);
  if (member == members_.end()) return {};
  return work_.cede(kAtOnce, static_cast<std::size_t>(member - members_.begin()));
}

ObjectShelf::ObjectShelf(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
                         std::uint32_t chunk_bytes, std::shared_ptr<const std::string> list)
    : plan_(sizes_of(files), chunk_bytes),
      files_(FileSystem::real(), folder, names_of(files), plan_),
      list_(std::move(list)) {
}

bool ObjectShelf::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (!files_.read(chunk, into)) return false;
  digest = pack::digest_of(into);
  return true;
}

}  // namespace lockstep::transfer
