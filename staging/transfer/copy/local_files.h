// The files of a copy while it is made. Chunks bypass the page cache (O_DIRECT) if the file system allows it, which is
// several times faster on a node's own disk and leaves memory to the job.
//
// Threads: safe from any, each byte written by one.
#pragma once

#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/open_files.h"

namespace lockstep::transfer {

class LocalFiles {
 public:
  /// `names` are the plan's files, below `folder`, which must exist. `sparse`: those with holes; none if it is empty.
  /// `plan` must outlive this object.
  LocalFiles(FileSystem& system, std::filesystem::path folder, std::vector<std::string> names,
             const ChunkPlan& plan, std::vector<bool> sparse = {});

  /// Makes the subfolders.
  void make_folders();

  /// Writes a chunk, creating its files. Throws Error naming the file, for example if the disk is full.
  void write(std::size_t chunk, const ChunkBuffers::Buffer& data);

  /// Reads a chunk back; false if files are missing or short.
  bool read(std::size_t chunk, std::span<std::byte> into);

  /// Makes these files durable.
  void sync(const std::vector<std::uint32_t>& files);

  std::filesystem::path path(std::size_t file) const { return folder_ / names_[file]; }

 private:
  UniqueFd create(std::size_t file, int flags);
  bool is_sparse(std::size_t file) const { return !sparse_.empty() && sparse_[file]; }
  bool write_direct(const Extent& extent, const ChunkBuffers::Buffer& data);
  void write_with_holes(int fd, const Extent& extent, std::span<const std::byte> data);

  FileSystem& system_;
  std::filesystem::path folder_;
  UniqueFd folder_fd_;  // files are read through it, because publishing renames the folder
  std::vector<std::string> names_;
  const ChunkPlan& plan_;
  std::vector<bool> sparse_;
  std::once_flag direct_tried_;
  bool direct_ = false;  // O_DIRECT works
  OpenFiles written_, written_direct_, read_;
};

}  // namespace lockstep::transfer
