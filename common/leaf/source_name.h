// The names of sources to stage, and the symbolic links in a source that are followed. The plugin, where a job is submitted,
// and lockstep-stage must decide alike.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// True for a source with *, ?, [ or { in its last name: expanded on the node.
bool is_pattern(const std::string& source);

/// The name of a source in $LOCKSTEP_DATA: the last name of its path, or, for a pattern, the name of the
/// folder that holds the files.
std::string entry_name(const std::string& source);

/// Returns "" if what `link` leads to lies in the folder `source`, which is a path without symbolic links. A snapshot in
/// the cache of huggingface_hub counts as its whole repository, because its files are links to the blobs there. Otherwise
/// returns why the link is not followed, and what to do.
std::string why_not_followed(const std::filesystem::path& link, const std::filesystem::path& source);

}  // namespace lockstep
