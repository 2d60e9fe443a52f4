// Compares the content of a shard with the index: for verify, and for a check of some pieces when staging
// finds the data in the cache.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Reads the shard once and compares its digest and the digest of each part. Throws Error naming shard,
/// sample and offset.
void check_digests(const std::filesystem::path& folder, const Index& index, std::size_t s);

/// Reads the tar headers of the shard. Every member must be a folder, or a plain file with the name, size and
/// offset of the next part in the index. Throws Error naming shard, sample and offset, or the unexpected
/// member.
void check_members(const std::filesystem::path& folder, const Index& index, std::size_t s);

/// Reads part p from an open shard and compares its digest. Throws Error naming shard, sample and offset.
void check_part(int fd, const std::filesystem::path& shard, const Index& index, std::size_t sample,
                std::size_t p);

}  // namespace lockstep::pack
