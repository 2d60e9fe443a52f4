// From the name that a user gives to the pack behind it.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <optional>

#include "staging/pack/index.h"

namespace lockstep::pack {

struct Located {
  std::filesystem::path folder;  ///< holds the shards and the index
  Index index;
  std::optional<std::size_t> shard;  ///< set where the name was one shard's
};

/// Finds and loads the index of a folder of shards, of one of its shards, or the index itself. Throws Error
/// where there is nothing, nothing packed, or nothing that fits.
Located locate(const std::filesystem::path& source);

/// Whether a folder holds files named *.tar.
bool has_tars(const std::filesystem::path& folder);

/// Checks that shard s is there, a regular file, and as long as the index says; returns its path. Throws
/// Error naming it.
std::filesystem::path check_shard_size(const std::filesystem::path& folder, const Index& index,
                                       std::size_t s);

}  // namespace lockstep::pack
