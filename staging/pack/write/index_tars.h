// Makes an index for tar shards that another program wrote, such as WebDataset's. The shards are not copied
// or changed.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::pack {

/// Reads all .tar files of a folder, in the order of their names, and writes an index beside them.
/// Consecutive members with the same key are one sample. Members that WebDataset does not find are left out
/// (member_name.h), and so are shards without samples; returns a line for the user about each. Throws Error naming the
/// shard and a member that cannot be part of a sample (a link, a device, an unsafe name, a part that appears twice, a tar
/// file). An index that exists is kept; a line tells if it lacks tar files.
std::vector<std::string> index_tars(const std::filesystem::path& folder);

}  // namespace lockstep::pack
