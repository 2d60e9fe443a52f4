#include "staging/transfer/exchange/chunk_owners.h"

#include <algorithm>

namespace lockstep::transfer {

ChunkOwners::ChunkOwners(const std::vector<std::uint32_t>& nodes, const std::vector<std::uint32_t>& holders)
    : owners_(holders.empty() ? nodes : holders) {
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(others_),
               [&](std::uint32_t node) { return node != owners_[0]; });
}

std::uint32_t ChunkOwners::successor(std::size_t chunk) const {
  const std::size_t count = owners_.size();
  const std::size_t round = chunk / count;
  if (count > 1) return owners_[(chunk + 1 + round % (count - 1)) % count];
  return others_.empty() ? owners_[0] : others_[round % others_.size()];
}

}  // namespace lockstep::transfer
