// Copies one small file from the source, in the calling thread.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/file_system.h"
#include "staging/transfer/copy/limit.h"

namespace lockstep::transfer {

/// Copies `size` bytes of an open file into the new file `to`, and syncs that. Returns the bytes copied: fewer if
/// the file is shorter. Throws Error.
std::uint64_t copy_file(FileSystem& system, Limit& limit, int from_fd, const std::filesystem::path& from,
                        const std::filesystem::path& to, std::uint64_t size);

}  // namespace lockstep::transfer
