// Makes an index for tar shards that another program wrote, such as WebDataset's. The shards are not copied
// or changed.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::pack {

/// Whether `source` is a folder of .tar files without an index, so that index_tars() can make one.
bool has_tars_without_index(const std::filesystem::path& source);

/// Reads all .tar files of a folder, in the order of their names, and writes an index beside them.
/// Consecutive members with the same key are one sample. Members that WebDataset does not find are left out
/// (stray_files.h), and so are shards without samples; returns a line for the user about each. Throws Error naming the
/// shard and a member that cannot be part of a sample (a link, a device, an unsafe name, a part that appears twice, a tar
/// file).
std::vector<std::string> index_tars(const std::filesystem::path& folder);

}  // namespace lockstep::pack
