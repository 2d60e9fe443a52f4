// Merges several indexes into one without holding them in memory: for a pack whose shards are finished one by one,
// perhaps by several calls, and for a pack to which shards are added.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Calls its argument with each index, in the order of the shards. The merge calls it several times.
using IndexPieces = std::function<void(const std::function<void(const Index&)>&)>;

/// Gives the bytes of the merged index to `sink`, block by block. They are the same as those of one
/// IndexBuilder that got all samples. Memory: about 100 bytes for each shard.
void merge_indexes(int token_bytes, const IndexPieces& pieces,
                   const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace lockstep::pack
