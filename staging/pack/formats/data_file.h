// A file of samples that does not change while it is read. The first read opens it and the first view maps
// it, since a job uses only some of thousands of files.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/mapped_file.h"

namespace lockstep::pack {

/// A file that is valid and has no samples. In a folder of several files it is left out.
class NoSamples : public Error {
 public:
  using Error::Error;
};

class DataFile {
 public:
  /// Asks for the file's size and time only. Throws Error if it does not exist or is not a regular file.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// When the content last changed, in nanoseconds since 1970.
  std::int64_t modified_ns() const { return modified_ns_; }

  /// Reads into.size() bytes at `offset`, which belong to sample `sample`. Throws Error naming file, sample
  /// and offset.
  void read(std::uint64_t offset, std::span<std::byte> into, std::size_t sample) const;

  /// The same bytes in a mapping of the file.
  std::span<const std::byte> view(std::uint64_t offset, std::uint64_t bytes, std::size_t sample) const;

  /// Up to `bytes` at `offset`; fewer at the end of the file.
  std::string read_some(std::uint64_t offset, std::size_t bytes) const;

  /// "FILE, sample N, offset O".
  std::string where(std::uint64_t offset, std::size_t sample) const;

 private:
  int fd() const;

  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  std::int64_t modified_ns_ = 0;
  mutable std::once_flag opened_;
  mutable std::once_flag mapped_;
  mutable UniqueFd fd_;
  mutable MappedFile mapping_;
};

/// Gives the next bytes, valid until the next call; empty at the end.
using NextBlock = std::function<std::span<const std::byte>()>;

/// The bytes of a file from its beginning, in blocks of 1 MiB, to read each byte once.
class Stream {
 public:
  /// `file` must outlive the stream. `progress` receives the length of each block.
  explicit Stream(
      const DataFile& file, std::function<void(std::uint64_t)> progress = [](std::uint64_t) {})
      : file_(file), progress_(std::move(progress)) {}

  /// The next block, valid until the next call; empty at the end. Throws Error if the file was truncated.
  std::span<const std::byte> next();

 private:
  const DataFile& file_;
  std::function<void(std::uint64_t)> progress_;
  std::uint64_t at_ = 0;
  std::string block_;
};

/// Reads pieces of any size from blocks; a piece may extend over several blocks.
class Cursor {
 public:
  /// `size` is the sum of the bytes of all blocks.
  Cursor(NextBlock next, std::uint64_t size) : next_(std::move(next)), size_(size) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t left() const { return size_ - offset_; }

  /// The next bytes: at least one and at most `max`. left() must not be 0.
  std::span<const std::byte> some(std::uint64_t max);
  /// Fills `into`, which must not be longer than left().
  void take(std::span<std::byte> into);

 private:
  NextBlock next_;
  std::uint64_t size_;
  std::uint64_t offset_ = 0;
  std::span<const std::byte> block_;
};

}  // namespace lockstep::pack
