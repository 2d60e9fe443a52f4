// A file mapped read-only for as long as the object lives.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace lockstep::pack {

class MappedFile {
 public:
  MappedFile() = default;
  /// Maps `size` bytes of an open file, which may be closed afterwards. Throws Error naming `path`.
  MappedFile(int fd, std::size_t size, const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return data_; }

 private:
  std::span<const std::byte> data_;
};

/// Whether a file may be mapped without a request from the user. If somebody truncates a mapped file, an access beyond
/// its end kills the process (SIGBUS); so may a network file system whose server stops. So this is true only for a file
/// on this node's own file systems that nobody may write, such as a file in the node's cache.
bool safe_to_map(const std::filesystem::path& file);

}  // namespace lockstep::pack
