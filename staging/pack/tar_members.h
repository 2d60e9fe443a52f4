// Reads the members of a tar file one after the other: v7, ustar, GNU and PAX, of any writer. Names are bytes: they are
// not converted, whatever the locale. (libarchive converts the names in PAX headers and composes their characters.)
// Where writers differ, the members are those that Python's tarfile finds, and therefore WebDataset.
//
// Threads: an object belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {

/// Headers and payloads begin at multiples of it.
inline constexpr std::uint64_t kTarBlock = 512;

constexpr std::uint64_t to_tar_blocks(std::uint64_t bytes) {
  return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
}

class TarMembers {
 public:
  /// Begins at `offset`, where a header must be. Throws Error if the file cannot be opened.
  explicit TarMembers(const std::filesystem::path& shard, std::uint64_t offset = 0)
      : file_(shard), next_(offset) {}

  /// Goes to the next member; false at the end of the archive. Throws Error naming the shard and the offset
  /// if it is not a complete tar file.
  bool next();

  /// Without the leading "./" that `tar -c .` writes.
  const std::string& name() const { return name_; }
  bool folder() const { return folder_; }
  /// Why it is not a regular file whose bytes are in one piece in the archive; "" if it is one.
  std::string_view not_plain() const { return not_plain_; }
  std::uint64_t size() const { return size_; }
  /// Of the payload in the shard.
  std::uint64_t offset() const { return offset_; }

  /// After next() has returned false: how many bytes follow the end of the archive, from the first block on that is not
  /// zero. Other tar programs ignore them too. 0 for padding of any length.
  std::uint64_t bytes_after_end() const;

 private:
  /// Extended headers, which describe the member after them, or all members after them (global_).
  struct Extended {
    /// Adds the fields of a later header, unless this one has them.
    void add(const Extended& later);

    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
    bool sparse = false;
  };

  std::string_view block();
  std::string payload(std::uint64_t size);
  void read_pax(const std::string& records, Extended& extended) const;
  void set_member(std::string_view header, const Extended& extended);
  [[noreturn]] void broken(std::string_view reason) const;

  DataFile file_;
  Extended global_;
  std::uint64_t next_;       ///< where the next header begins
  std::uint64_t begin_ = 0;  ///< the header that is read, for messages
  std::string window_;       ///< bytes of the file from window_begin_ on
  std::uint64_t window_begin_ = 0;
  std::string name_;
  bool folder_ = false;
  std::string_view not_plain_;
  std::uint64_t size_ = 0;
  std::uint64_t offset_ = 0;
};

/// A line for the user about what bytes_after_end() has found.
std::string describe_bytes_after_end(std::string_view shard, std::uint64_t bytes);

/// Whether these are the first bytes of a tar file: 512 bytes with the checksum of a header.
bool is_tar(std::string_view first_bytes);

/// Whether its name says that a file is a tar file, perhaps a compressed one: "x.tar", "x.TGZ", "x.tar.zst".
bool is_tar_name(std::string_view name);

}  // namespace lockstep::pack
