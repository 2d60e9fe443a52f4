// Copies the indexes that readers of some formats keep beside the data (staging/pack/formats/side_index.h). They may be
// made at any time, also while the data is copied, so they are not among the files that nodes agree on and exchange.
// Each node reads them from the source: 40 to 50 bytes for each record. A bad index is left out; the first open then
// scans the whole file.
//
// Threads: one at a time; keep_time() from any. copy() starts its own and has joined them when it returns.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/transfer/copy/limit.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

/// Copies `size` bytes of an open file of the source into the new file `to`, and syncs that. Returns the bytes copied: fewer if
/// the file is shorter. Throws Error.
std::uint64_t copy_file(FileSystem& system, Limit& limit, int from_fd, const std::filesystem::path& from,
                        const std::filesystem::path& to, std::uint64_t size);

class SideIndexes {
 public:
  /// Finds the indexes of formats that have any. The references must outlive this object.
  SideIndexes(FileSystem& system, Limit& limit, const Manifest& manifest,
              const std::vector<ManifestFile>& files);

  /// The size of all indexes. No more is copied, even if one has grown since.
  std::uint64_t bytes() const;

  /// Gives a file's copy the modification time of the original, which its index refers to. Call it before the
  /// copy can be opened.
  bool keep_time(const ManifestFile& file, const std::filesystem::path& target) const;

  /// Copies the indexes to `target`, and gives the data there the times of the originals. Returns the bytes
  /// of the good indexes.
  std::uint64_t copy(const std::filesystem::path& target);

  std::uint64_t bytes_from_source() const { return read_; }
  /// One line about the indexes that were left out, or "".
  std::string left_out() const;

 private:
  std::filesystem::path at_source(std::size_t file) const;
  void copy_one(std::size_t file, const std::filesystem::path& to);

  FileSystem& system_;
  Limit& limit_;
  const Manifest& manifest_;
  const std::vector<ManifestFile>& files_;
  std::vector<std::uint64_t> sizes_;  // by file; 0: no index
  std::atomic<std::uint64_t> read_ = 0;
  std::mutex mutex_;
  std::size_t left_out_ = 0;
  std::string why_;  // of one of them
};

}  // namespace lockstep::transfer
