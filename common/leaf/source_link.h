// Decides which symbolic links in a source are followed. The plugin, where a job is submitted, and lockstep-stage must
// decide alike.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// Returns "" if what `link` leads to lies in the folder `source`, which is a path without symbolic links. A snapshot in
/// the cache of huggingface_hub counts as its whole repository, because its files are links to the blobs there. Otherwise
/// returns why the link is not followed, and what to do.
std::string why_not_followed(const std::filesystem::path& link, const std::filesystem::path& source);

}  // namespace lockstep
