// The indexes that the reader of some formats keeps beside the data (staging/pack/formats/side_index.h),
// taken along when the data is copied. They are no part of what a source is: it stays the same when one is
// made, also while it is copied, and a copy goes on from what was there before. So they are not among the
// files that nodes agree on and pass on to each other: each node of a step reads them itself, 40 to 50 bytes
// for each record.
//
// Whatever is wrong with one costs no more than the index: it is left out, and the file is read through when
// it is first opened.
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

class SideIndexes {
 public:
  /// Looks which there are, for formats that have any. All outlive it.
  SideIndexes(FileSystem& system, Limit& limit, HangWatch& watch, const Manifest& manifest,
              const std::vector<ManifestFile>& files);

  /// That they take; no more is copied, whatever has become of them since.
  std::uint64_t bytes() const;

  /// Gives a file's copy the time of the original, by which its index knows it: before anybody opens it.
  bool keep_time(const ManifestFile& file, const std::filesystem::path& target) const;

  /// Puts them beside the copies in `target`, which get the times of the originals. Returns the bytes of
  /// those that are good.
  std::uint64_t copy(const std::filesystem::path& target);

  std::uint64_t bytes_from_source() const { return read_; }
  /// One line about those that were left out, or "".
  std::string left_out() const;

 private:
  std::filesystem::path at_source(std::size_t file) const;
  void copy_one(std::size_t file, const std::filesystem::path& to);

  FileSystem& system_;
  Limit& limit_;
  HangWatch& watch_;
  const Manifest& manifest_;
  const std::vector<ManifestFile>& files_;
  std::vector<std::uint64_t> sizes_;  // by file; 0 where there is none
  std::atomic<std::uint64_t> read_ = 0;
  std::mutex mutex_;
  std::size_t left_out_ = 0;
  std::string why_;  // of one of them
};

}  // namespace lockstep::transfer
