// Files the careful way: descriptors that close themselves, whole-file reads, atomic replacement.
//
// Threads: functions are safe from any; a UniqueFd belongs to one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// Owns a file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// open(2) with O_CLOEXEC. Throws Error "cannot open PATH: reason".
UniqueFd open_file(const std::filesystem::path& path, int flags, mode_t mode = 0644);

/// The whole file as text. Throws Error naming the path.
std::string read_text_file(const std::filesystem::path& path);

/// Writes to a temporary name in the same folder, syncs, renames and syncs the folder: a reader sees the old
/// file or the new one. Throws Error naming the path; leaves no temporary file behind then.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode = 0644);

/// Writes all bytes at the descriptor's position, through short writes and EINTR. Throws Error naming `path`.
void write_all(int fd, std::string_view content, const std::filesystem::path& path);

}  // namespace lockstep
