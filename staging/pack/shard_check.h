// Checks of a shard's content against the index: what verification and a warm cache hit are made of.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Reads the whole shard once: its digest, and that of each part. Throws Error naming shard, sample and
/// offset.
void check_digests(const std::filesystem::path& folder, const Index& index, std::size_t s);

/// Walks the shard's tar headers: every member a plain file with the name, size and offset of the index's
/// next part, and no member besides but folders. Throws Error naming shard, sample and offset, or the member
/// that does not belong there.
void check_members(const std::filesystem::path& folder, const Index& index, std::size_t s);

/// Reads part p from an open shard and compares its digest. Throws Error naming shard, sample and offset.
void check_part(int fd, const std::filesystem::path& shard, const Index& index, std::size_t sample,
                std::size_t p);

}  // namespace lockstep::pack
