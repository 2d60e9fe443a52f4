// The indexes that the reader of some formats keeps beside the data (staging/pack/formats/side_index.h),
// taken along when the data is copied. They are no part of what a source is: it stays the same when one is
// made.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/file_system.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

/// Bytes that they take now; 0 for formats that have none.
std::uint64_t side_index_bytes(const Manifest& manifest, const std::vector<ManifestFile>& files,
                               SourceWatch& watch);

/// Puts them beside the copies in `target`, which get the times of the originals. Returns their bytes.
std::uint64_t copy_side_indexes(FileSystem& system, const Manifest& manifest,
                                const std::vector<ManifestFile>& files, const std::filesystem::path& target,
                                SourceWatch& watch);

}  // namespace lockstep::transfer
