// Finds the tar pack that a user has named.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "staging/pack/index.h"

namespace lockstep::pack {

struct Located {
  std::filesystem::path folder;  ///< holds the shards and the index
  Index index;
  std::optional<std::size_t> shard;  ///< set if the user named one shard
};

/// Finds and loads the index for a folder of shards, for one of its shards, or the index file itself. Throws
/// Error if the source does not exist, is not packed, or does not match its index.
Located locate(const std::filesystem::path& source);

/// Whether a file is a tar shard, judged by its name in any case. The Mac's "._x.tar" is not.
bool is_shard_name(std::string_view name);

/// Whether a folder holds such files.
bool has_tars(const std::filesystem::path& folder);

/// Checks that shard s is a regular file and as long as the index says, and returns its path. Throws Error
/// naming it.
std::filesystem::path check_shard_size(const std::filesystem::path& folder, const Index& index,
                                       std::size_t s);

}  // namespace lockstep::pack
