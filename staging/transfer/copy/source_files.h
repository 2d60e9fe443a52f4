// The files at the source that are copied: read chunk by chunk, and watched for change.
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/file_system.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/holes.h"
#include "staging/transfer/copy/limit.h"
#include "staging/transfer/copy/open_files.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

class SourceFiles {
 public:
  /// The references must outlive this object. `pause`: before the first retry (source_retry.h).
  SourceFiles(FileSystem& system, std::filesystem::path folder, const std::vector<ManifestFile>& files,
              const ChunkPlan& plan, Limit& limit, std::chrono::milliseconds pause);

  /// Reads a chunk. Throws Error if a file differs from the list, or changes while it is read.
  void read(std::size_t chunk, std::span<std::byte> into);

  /// Throws Error if a file that was read in several chunks has changed since it was first opened; if `all`, also if one is not
  /// as in the list.
  void check_unchanged(bool all);

  /// Whether the source's file system could not be reached; the bytes that were read before are good.
  bool failed() const { return failed_; }

  /// Bytes read so far, without holes.
  std::uint64_t bytes_read() const { return bytes_; }

 private:
  UniqueFd open(std::size_t file);
  void retry(const std::function<void()>& work, const std::function<void()>& before_next = {});
  void read_extent(const Extent& extent, std::span<std::byte> into);
  void read_range(int fd, const Extent& extent, ByteRange range, std::span<std::byte> into);

  FileSystem& system_;
  std::filesystem::path folder_;
  const std::vector<ManifestFile>& files_;
  const ChunkPlan& plan_;
  Limit& limit_;
  std::chrono::milliseconds pause_;
  OpenFiles open_files_;
  std::mutex mutex_;
  std::unordered_map<std::size_t, FileState> first_;  // of files that take several chunks, when first opened
  std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace lockstep::transfer
