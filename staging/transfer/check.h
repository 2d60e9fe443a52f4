// Checks whether the files of a copy in the cache are still as they were when they were published.
//
// Threads: safe from any; check_copy() starts its own threads.
#pragma once

#include <filesystem>

#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Checks the files of an object in `folder`: against their index, or else against the object.json beside it.
/// Throws Error that names the damaged file.
void check_copy(const std::filesystem::path& folder, Verify verify, int threads);

}  // namespace lockstep::transfer
