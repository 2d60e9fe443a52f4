// How a step's lease gets to an object, in the user's own store and in the shared one.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "common/file_system.h"

namespace lockstep::cache {

/// Gives a file that somebody keeps locked a second name in an object's folder of leases. Throws Error where
/// nobody holds the file, or the folder is on another file system.
void link_lease(FileSystem& system, const std::filesystem::path& held_file,
                const std::filesystem::path& leases);

}  // namespace lockstep::cache
