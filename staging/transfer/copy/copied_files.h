// The files of a copy: at the source, read chunk by chunk and watched for change, and on this node's disk.
//
// Threads: safe from any, each byte written by one.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/file_system.h"
#include "common/files.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// Files kept open while they are used and for a while after: on a network file system opening a file costs more than reading
/// it, and a process may have only so many files open.
class OpenFiles {
 public:
  using Open = std::function<UniqueFd(std::size_t file)>;

  /// Keeps up to `max_open` files open, besides those in use.
  OpenFiles(std::size_t max_open, Open open) : max_open_(max_open), open_(std::move(open)) {}

  /// The file, open until the pointer is dropped. Two threads that ask for the same file at once may open it
  /// twice.
  std::shared_ptr<const UniqueFd> get(std::size_t file);

  /// Forgets the file; it stays open while it is in use.
  void drop(std::size_t file);

 private:
  std::size_t max_open_;
  Open open_;
  std::mutex mutex_;
  std::map<std::size_t, std::shared_ptr<const UniqueFd>>
      files_;  // copied in this order, so the first one is closed first
};

/// The files on this node's disk. Chunks bypass the page cache (O_DIRECT) if the file system allows it, which is several times
/// faster on a node's own disk and leaves memory to the job. Holes of a sparse file, such as most of an LMDB map, stay holes.
class LocalFiles {
 public:
  /// `files` are the plan's, below `folder`, which must exist. `plan` must outlive this object.
  LocalFiles(FileSystem& system, std::filesystem::path folder, const std::vector<ManifestFile>& files,
             const ChunkPlan& plan);

  /// Makes the subfolders.
  void make_folders();

  /// Writes a chunk, creating its files. Throws Error naming the file, for example if the disk is full.
  void write(std::size_t chunk, const LentChunk& data);

  /// Reads a chunk back; false if files are missing or short.
  bool read(std::size_t chunk, std::span<std::byte> into);

  /// Makes these files durable.
  void sync(const std::vector<std::uint32_t>& files);

  std::filesystem::path path(std::size_t file) const { return folder_ / files_[file].name; }

 private:
  UniqueFd create(std::size_t file, int flags);
  bool is_sparse(std::size_t file) const { return files_[file].holes > 0; }
  bool write_direct(const Extent& extent, const LentChunk& data);
  void write_with_holes(int fd, const Extent& extent, std::span<const std::byte> data);

  FileSystem& system_;
  std::filesystem::path folder_;
  UniqueFd folder_fd_;  // files are read through it, because publishing renames the folder
  const std::vector<ManifestFile> files_;
  const ChunkPlan& plan_;
  std::once_flag direct_tried_;
  bool direct_ = false;  // O_DIRECT works
  OpenFiles written_, written_direct_, read_;
};

/// The files at the source.
class SourceFiles {
 public:
  /// The references must outlive this object. `pause`: before the first retry (retry_source()).
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
