// Finds and reads checkpoints.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/train/checkpoint/manifest.h"

namespace lockstep::checkpoint {

/// A checkpoint in memory. Sizes and digests are those of the manifest.
struct Contents {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<std::string> files;              ///< as in the manifest
  std::vector<std::filesystem::path> damaged;  ///< the newer checkpoints, which read_newest() skipped
};

/// The steps of all checkpoints in the folder, damaged ones included, the newest first. Empty if the folder
/// does not exist. Throws Error if it is not a folder.
std::vector<std::int64_t> steps_in(FileSystem& system, const std::filesystem::path& folder);

/// The content of a file; nullopt if there is no regular file of that name.
std::optional<std::string> read_if_there(FileSystem& system, const std::filesystem::path& path);

/// Reads one checkpoint. Throws Damaged, or Error for another format version.
Contents read(FileSystem& system, const std::filesystem::path& checkpoint);

/// Reads the newest checkpoint that is not damaged, and calls `skipped` with a line for each damaged one
/// before it. Returns nullopt if there is no checkpoint; throws Error if all are damaged, or if the newest
/// has another format version.
std::optional<Contents> read_newest(FileSystem& system, const std::filesystem::path& folder,
                                    const std::function<void(const std::string&)>& skipped);

}  // namespace lockstep::checkpoint
