// Compares the content of a shard with the index: for verify, and to check some pieces when staging finds the data in
// the cache.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Reads the shard once and compares its digest and the digest of each part. Throws Error naming shard,
/// sample and offset. Calls `progress` after each block with its length.
void check_digests(const std::filesystem::path& folder, const Index& index, std::size_t s,
                   const std::function<void(std::uint64_t)>& progress);

/// Reads part p from an open shard and compares its digest. Throws Error naming shard, sample and offset.
void check_part(int fd, const std::filesystem::path& shard, const Index& index, std::size_t sample,
                std::size_t p);

/// "SHARD, sample 3 (dog.jpg), offset 512", for messages.
std::string describe_part(const std::filesystem::path& shard, const Index& index, std::size_t sample,
                          const layout::PartRecord& part);

/// Reads the tar headers of the shard. Every member must be a folder, or a plain file with the name, size and
/// offset of the next part in the index. Throws Error naming shard, sample and offset, or the unexpected
/// member.
void check_members(const std::filesystem::path& folder, const Index& index, std::size_t s);

}  // namespace lockstep::pack
