// How a step's lease gets to an object, in the user's own store and in the shared one.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

#include "common/file_system.h"

namespace lockstep::cache {

/// Gives a file that somebody keeps locked a second name in an object's folder of leases. Throws Error where
/// nobody holds the file, NoLease where it cannot be linked there. The name is the file's own; in the shared
/// store, where others may have taken that, one with "-" and random digits after it.
void link_lease(FileSystem& system, const std::filesystem::path& held_file,
                const std::filesystem::path& leases);

/// The step that a lease of this name is of.
std::string step_of(const std::string& lease);

}  // namespace lockstep::cache
