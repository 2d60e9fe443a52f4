// Copies one file, hashing it on the way.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "common/file_system.h"
#include "staging/pack/digest.h"

namespace lockstep::transfer {

struct CopyOptions {
  std::uint64_t size = 0;                           ///< what the file must have
  std::function<void(std::uint64_t bytes)> copied;  ///< called for every block
  std::function<bool()> stop;                       ///< true: give up (something else failed)
};

/// Copies `from` to the new file `to`, synced, and returns the digest of what it wrote. Holds one block of 4
/// MiB. Throws Error where the size is another, the source changes meanwhile, or the disk is full.
pack::Digest copy_file(FileSystem& system, const std::filesystem::path& from, const std::filesystem::path& to,
                       const CopyOptions& options);

}  // namespace lockstep::transfer
