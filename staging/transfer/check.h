// Whether a copy in the cache is still what it should be.
//
// Threads: safe from any; check_copy() starts its own threads.
#pragma once

#include <filesystem>

#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Checks the files of an object in `folder`: against their index, or else against the object.json beside it.
/// Throws Error naming what is damaged.
void check_copy(const std::filesystem::path& folder, Verify verify, int threads);

}  // namespace lockstep::transfer
