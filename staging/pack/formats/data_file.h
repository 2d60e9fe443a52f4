// A file of samples that stays as it is while it is read: opened when first read, mapped when first viewed,
// since a job touches its share of thousands.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "common/files.h"
#include "staging/pack/mapped_file.h"

namespace lockstep::pack {

class DataFile {
 public:
  /// Looks at the file's size and time only. Throws Error where it is not there or no regular file.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Of the last change, in nanoseconds since 1970.
  std::int64_t modified_ns() const { return modified_ns_; }

  /// Reads into.size() bytes at `offset`, of sample `sample`. Throws Error naming file, sample and offset.
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

/// Bytes that come one block after the other.
class Blocks {
 public:
  virtual ~Blocks() = default;
  /// The next bytes, valid until the next call; none at the end.
  virtual std::span<const std::byte> next() = 0;
};

/// A file's bytes from the front in blocks of 1 MiB, for those who need all of them once.
class Stream : public Blocks {
 public:
  /// `file` must outlive the stream.
  explicit Stream(const DataFile& file);

  /// Throws Error where the file has become shorter.
  std::span<const std::byte> next() override;

 private:
  const DataFile& file_;
  std::uint64_t at_ = 0;
  std::string block_;
};

/// Bytes at hand as one block.
class OneBlock : public Blocks {
 public:
  explicit OneBlock(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> next() override { return std::exchange(bytes_, {}); }

 private:
  std::span<const std::byte> bytes_;
};

/// Takes pieces of any size off blocks, whatever the blocks' borders.
class Cursor {
 public:
  /// `size` is how many bytes the blocks have together.
  Cursor(Blocks& blocks, std::uint64_t size) : blocks_(blocks), size_(size) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t left() const { return size_ - offset_; }

  /// The next bytes, at most `most` of them and at least one. There must be some left.
  std::span<const std::byte> some(std::uint64_t most);
  /// Fills `into`, which must not be longer than what is left.
  void take(std::span<std::byte> into);

 private:
  Blocks& blocks_;
  std::uint64_t size_;
  std::uint64_t offset_ = 0;
  std::span<const std::byte> block_;
};

}  // namespace lockstep::pack
