// Checks whether the files of a copy in the cache are still as they were when they were published.
//
// Threads: safe from any; check_copy() starts its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

/// Checks the files of an object in `folder`: against their index, or else against the object.json beside it.
/// Throws Error that names the damaged file. A full check calls `checked` after each file, with its bytes, from
/// several threads.
void check_copy(const std::filesystem::path& folder, Verify verify, int threads,
                const std::function<void(std::uint64_t bytes)>& checked = {});

}  // namespace lockstep::transfer
