// Decides which node reads which chunk from the source. Every chunk has one owner and one successor, which replaces the
// owner if the owner is lost. Both follow from the list of nodes, so that all nodes know them without a message. Every
// node owns an equal share of the chunks, and the other nodes are successors of equal parts of that share.
//
// Threads: const members are safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::transfer {

class ChunkOwners {
 public:
  /// `nodes` take part; `holders` are those of them that have the whole object. If there are any, they own all chunks;
  /// the other nodes are the successors of a single holder.
  ChunkOwners(const std::vector<std::uint32_t>& nodes, const std::vector<std::uint32_t>& holders);

  std::uint32_t owner(std::size_t chunk) const { return owners_[chunk % owners_.size()]; }
  /// Another node than the owner, unless there is only one.
  std::uint32_t successor(std::size_t chunk) const;

 private:
  std::vector<std::uint32_t> owners_;
  std::vector<std::uint32_t> others_;  // of a single owner
};

}  // namespace lockstep::transfer
