// Writes one tar shard, member by member, and hashes it at the same time. All headers have time 0, owner 0
// and mode 0644, so the same input gives the same bytes.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/digest.h"

struct archive;
struct archive_entry;

namespace lockstep::pack {

class ShardWriter {
 public:
  /// Creates the file, which must not exist. Throws Error naming it.
  explicit ShardWriter(std::filesystem::path path, FileSystem& system = FileSystem::real());
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Begins a member of exactly `size` bytes and returns the offset of its payload in the shard.
  std::uint64_t begin(const std::string& name, std::uint64_t size);
  void write(std::span<const std::byte> payload);

  /// Ends the archive and syncs the file. After that size() and digest() are final.
  void finish();

  /// Bytes so far.
  std::uint64_t size() const { return size_; }
  Digest digest() const { return hasher_.digest(); }

 private:
  struct Free {
    void operator()(archive* writer) const;
    void operator()(archive_entry* entry) const;
  };
  void check(std::int64_t code);
  void emit(std::span<const std::byte> bytes);
  void flush();
  void put(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  FileSystem& system_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;  // size_ without the bytes in the buffer
  std::string failure_;
  bool abandoned_ = false;
  std::uint64_t size_ = 0;
  Hasher hasher_;
  std::unique_ptr<archive_entry, Free> entry_;
  std::unique_ptr<archive, Free> archive_;
};

}  // namespace lockstep::pack
