// Finds and reads checkpoints, and tells lockstep-report what was loaded.
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

/// A checkpoint whose files have the sizes of its manifest.
struct Found {
  std::filesystem::path folder;
  Manifest manifest;
};

/// The steps of the checkpoints in the folder, complete or damaged, newest first; empty if the folder
/// does not exist. Throws Error if it is not a folder.
std::vector<std::int64_t> steps_in(FileSystem& system, const std::filesystem::path& folder);

/// The content of a file; nullopt if there is no regular file of that name.
std::optional<std::string> read_if_there(FileSystem& system, const std::filesystem::path& path);

/// Reads all bytes at the offset. Throws Damaged if the file ends earlier.
void read_bytes(FileSystem& system, int file, std::span<std::byte> into, std::uint64_t offset,
                const std::filesystem::path& path, FileProgress& progress);

/// A part of a file that is needed in memory.
struct FilePart {
  std::uint64_t offset = 0;
  std::span<std::byte> into;
};
/// Reads a file of the checkpoint from begin to end, in memory for a few MiB, compares it with the manifest, and puts the
/// parts into their places. Throws Damaged.
void read_file(FileSystem& system, const std::filesystem::path& checkpoint, const FileEntry& file,
               std::vector<FilePart> parts, FileProgress& progress);

/// Goes through the checkpoints of a folder, the newest first, until one is not damaged.
class CheckpointSearch {
 public:
  /// `skipped` is called with a line for each damaged checkpoint that has one before it.
  CheckpointSearch(FileSystem& system, const std::filesystem::path& folder, FileProgress& progress,
                   std::function<void(const std::string&)> skipped);

  /// The next checkpoint whose manifest and sizes are right; nullopt if the folder has no checkpoint. Throws Error if all
  /// are damaged, or if the next one has another format version.
  std::optional<Found> next();
  /// The checkpoint that next() returned is damaged.
  void reject(const std::string& damage);

  const std::vector<std::filesystem::path>& damaged() const { return damaged_; }

 private:
  FileSystem& system_;
  std::filesystem::path folder_;
  FileProgress& progress_;
  std::function<void(const std::string&)> skipped_;
  std::optional<std::vector<std::int64_t>> steps_;
  std::size_t tried_ = 0;
  std::string line_;  // of the last damaged one
  std::vector<std::filesystem::path> damaged_;
};

/// Tells lockstep-report what a start of lockstep-run has loaded: a line in the file restarts-JOB.jsonl of the report's
/// folder. Only lockstep-run makes this file; without it nothing is written.
class LoadLog {
 public:
  /// Begins to measure.
  LoadLog();
  /// A checkpoint after `steps` steps is loaded; 0: there was none. Prints a line if it cannot be written.
  void write(std::int64_t steps) const noexcept;

 private:
  std::uint64_t begin_ns_;
};

}  // namespace lockstep::checkpoint
