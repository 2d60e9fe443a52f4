// One index out of several, without having them in memory: what a pack's index is made of when its shards
// were finished one by one, perhaps by several calls, and how shards are added to a pack.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Calls its argument with each index in the order of the shards; the merge goes through them several times.
using IndexPieces = std::function<void(const std::function<void(const Index&)>&)>;

/// Gives the bytes of the index of all the pieces' shards to `sink`, piece by piece. They are the same as if
/// all had been told to one IndexBuilder. Memory: some 100 bytes per shard.
void merge_indexes(int token_bytes, const IndexPieces& pieces,
                   const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace lockstep::pack
