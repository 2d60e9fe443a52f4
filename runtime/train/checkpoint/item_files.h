// The files of one item in a checkpoint, by the ranks whose state they have.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/reader.h"
#include "runtime/train/checkpoint/section.h"
#include "runtime/train/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

/// The key of a file's metadata under which the items are described.
inline constexpr const char* kOurMetadata = "lockstep";

class ItemFiles {
 public:
  /// The references must outlive this object. Throws Damaged if the state of a rank is missing.
  ItemFiles(FileSystem& system, std::filesystem::path checkpoint, const Manifest& manifest,
            const std::string& item, FileProgress& progress);

  /// The number of ranks that saved.
  int ranks() const { return static_cast<int>(by_rank_.size()); }
  const FileEntry& of_rank(int rank) const { return *by_rank_.at(static_cast<std::size_t>(rank)); }

  /// The tensors have no memory. Throws Damaged.
  TensorFile header(const FileEntry& file) const;
  /// As read_file().
  void read(const FileEntry& file, std::vector<FilePart> parts) const;
  /// The whole file.
  void read(const FileEntry& file, FileBuffer& into) const;

 private:
  FileSystem& system_;
  std::filesystem::path checkpoint_;
  FileProgress& progress_;
  std::vector<const FileEntry*> by_rank_;
};

/// The values of an item in the description that a file carries. Throws nlohmann::json::exception.
nlohmann::json section_values(const TensorFile& file, const std::string& item);

/// The begin of a file, as read_tensor_header() needs it. Throws Damaged.
std::string read_header(FileSystem& system, const std::filesystem::path& checkpoint, const FileEntry& file,
                        FileProgress& progress);

}  // namespace lockstep::checkpoint
