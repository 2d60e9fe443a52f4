// An index for tar shards that another program wrote, such as WebDataset's: they are not copied or changed.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

namespace lockstep::pack {

/// Whether `source` is a folder of .tar files without an index, so that index_tars() can make one.
bool has_tars_without_index(const std::filesystem::path& source);

/// Reads all .tar files of a folder, in the order of their names, and writes an index beside them: members
/// that follow each other and share a key are a sample. Throws Error naming shard and member that cannot be
/// one (links, devices, unsafe names, a part that comes twice).
void index_tars(const std::filesystem::path& folder);

}  // namespace lockstep::pack
