// Reads the members of a tar file one after the other, as any tar program does.
//
// Threads: an object belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct archive;
struct archive_entry;

namespace lockstep::pack {

class TarMembers {
 public:
  /// `shard` must outlive this object. Throws Error naming it.
  explicit TarMembers(const std::filesystem::path& shard);

  /// Goes to the next member; false at the end of the archive. Throws Error naming the shard and the offset
  /// if it is not a complete tar file.
  bool next();

  /// Without the leading "./" that `tar -c .` writes.
  std::string name() const;
  bool folder() const;
  /// Whether it is a regular file whose bytes are in one piece in the archive.
  bool plain_file() const;
  std::uint64_t size() const;
  /// Of the payload in the shard.
  std::uint64_t offset() const;

 private:
  struct Free {
    void operator()(archive* reader) const;
  };
  [[noreturn]] void broken() const;

  const std::filesystem::path& shard_;
  std::unique_ptr<archive, Free> archive_;
  archive_entry* entry_ = nullptr;
};

}  // namespace lockstep::pack
