// Finds and reads checkpoints.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/manifest.h"

namespace lockstep::checkpoint {

/// A checkpoint whose files have the sizes and digests of its manifest.
struct Found {
  std::filesystem::path folder = {};
  Manifest manifest = {};
  std::vector<std::filesystem::path> damaged = {};  ///< the newer checkpoints, which find_newest() skipped
};

/// The steps of all checkpoints in the folder, damaged ones included, the newest first. Empty if the folder
/// does not exist. Throws Error if it is not a folder.
std::vector<std::int64_t> steps_in(FileSystem& system, const std::filesystem::path& folder);

/// The content of a file; nullopt if there is no regular file of that name.
std::optional<std::string> read_if_there(FileSystem& system, const std::filesystem::path& path);

/// Reads all bytes at the offset. Throws Damaged if the file ends earlier.
void read_bytes(FileSystem& system, int file, std::span<std::byte> into, std::uint64_t offset,
                const std::filesystem::path& path, FileProgress& progress);

/// Reads the manifest of one checkpoint and compares all of its files with it, in memory for a few MiB. Throws Damaged,
/// or Error for another format version.
Manifest check(FileSystem& system, const std::filesystem::path& checkpoint, FileProgress& progress);

/// Finds the newest checkpoint that is not damaged, and calls `skipped` with a line for each damaged one
/// before it. Returns nullopt if there is no checkpoint; throws Error if all are damaged, or if the newest
/// has another format version.
std::optional<Found> find_newest(FileSystem& system, const std::filesystem::path& folder,
                                 FileProgress& progress,
                                 const std::function<void(const std::string&)>& skipped);

}  // namespace lockstep::checkpoint
