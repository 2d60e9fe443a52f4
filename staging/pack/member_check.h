// Compares the tar headers of a shard with the index.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// Reads the tar headers of the shard. Every member must be a folder, or a plain file with the name, size and
/// offset of the next part in the index. Throws Error naming shard, sample and offset, or the unexpected
/// member.
void check_members(const std::filesystem::path& folder, const Index& index, std::size_t s);

}  // namespace lockstep::pack
