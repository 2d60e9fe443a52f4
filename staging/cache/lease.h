// Links a step's lease to an object, in the user's own store and in the shared one.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

#include "common/file_system.h"

namespace lockstep::cache {

/// Gives a file that a step keeps locked a second name in an object's folder of leases. The name is the
/// file's own; if it is taken (other users can take it in the shared store), "-" and random digits are added.
/// Throws Error if nobody holds the file, NoLease if it cannot be linked there.
void link_lease(FileSystem& system, const std::filesystem::path& held_file,
                const std::filesystem::path& leases);

/// The step of a lease with this name.
std::string step_of(const std::string& lease);

}  // namespace lockstep::cache
