// Finds the shards of an interrupted call that the current call can use again.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "common/file_system.h"
#include "staging/pack/write/journal.h"
#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct ReusableShards {
  std::size_t shards = 0;
  std::size_t files = 0;  ///< in these shards
  std::string changed;    ///< why there are no more: names the first file that has changed; or ""
};

/// Finds the leading shards of the journal that this call would write again in the same way: they hold
/// exactly the first files of the list, the sizes and times of these files have not changed, and each shard
/// ends at the same sample. Several threads ask for the state of the files.
/// `folder` holds the complete shards.
ReusableShards find_reusable_shards(const PackingOptions& options, const Journal& journal,
                                    const std::filesystem::path& folder, FileSystem& system);

}  // namespace lockstep::pack
