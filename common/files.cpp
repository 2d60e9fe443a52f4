#include "common/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>
#include <system_error>

#include "common/error.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // the kernel's limit

/// The descriptor N of this process, if the path is /proc/self/fd/N.
std::optional<int> descriptor_named(const fs::path& path) {
  std::error_code none;
  const fs::path descriptors = fs::canonical("/proc/self/fd", none);
  if (none || fs::canonical(parent_of(path), none) != descriptors) return {};
  const std::optional<int> fd = to_number<int>(path.filename().string());
  return fd && *fd >= 0 ? fd : std::nullopt;
}

bool is_standard_output(const struct stat& file) {
  struct stat out {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == file.st_dev && out.st_ino == file.st_ino;
}

}  // namespace

UniqueFd open_file(const std::filesystem::path& path, int flags, mode_t mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) fail_errno("cannot open {}", path.string());
  return fd;
}

std::string read_text_file(const std::filesystem::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::string content;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read {}", path.string());
    if (got == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::string read_untrusted_file(const UniqueFd& fd, std::uint64_t max_bytes, const std::string& name) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot read {}", name);
  if (!S_ISREG(status.st_mode)) fail("cannot read {}: it is not a regular file", name);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) fail("cannot read {}: it has {} bytes, more than it can have", name, size);
  std::string text(size, '\0');
  const ssize_t got = read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  if (got < 0) fail_errno("cannot read {}", name);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

ssize_t read_at(int fd, std::span<std::byte> into, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

void write_all(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("cannot write {}", path.string());
    content.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode) {
  write_file_atomically(
      path, [&](int fd) { write_all(fd, content, path); }, mode);
}

void write_file_atomically(const std::filesystem::path& path, const std::function<void(int)>& write,
                           mode_t mode) {
  const std::filesystem::path folder = parent_of(path);
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) fail_errno("cannot create a temporary file in {}", folder.string());
  try {
    write(fd.get());
    if (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0) fail_errno("cannot write {}", path.string());
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno("cannot write {}", path.string());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const UniqueFd folder_fd = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(folder_fd.get()) != 0) fail_errno("cannot sync {}", folder.string());
}

void write_output(const fs::path& path, std::string_view content) {
  write_output(path, [&](int fd) { write_all(fd, content, path); });
}

void write_output(const fs::path& path, const std::function<void(int)>& write) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  // The descriptor may be named through links: /dev/stderr.
  std::optional<int> named = descriptor_named(path);
  std::error_code error;
  fs::path at = path;
  for (int links = 0; !named && links < kMaxLinks && fs::is_symlink(at, error); ++links) {
    at = parent_of(at) / fs::read_symlink(at, error);
    named = descriptor_named(at);
  }
  if (exists && is_standard_output(status)) named = STDOUT_FILENO;
  if (named) {
    if (*named == STDOUT_FILENO) (void)std::fflush(stdout);
    return write(*named);
  }
  if (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    const UniqueFd fd = open_file(path, O_WRONLY);
    return write(fd.get());
  }
  if (!exists && fs::is_symlink(path, error))
    fail("cannot write {}: it is a symbolic link that leads to no file: remove it", path.string());
  write_file_atomically(exists ? fs::canonical(path) : path, write);
}

}  // namespace lockstep
