#include "common/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <system_error>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/number.h"

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

/// The end of a chain of links, where nothing need exist, and the descriptor that its path names, if any.
struct Target {
  fs::path path;
  std::optional<int> fd;
};

Target target_of(const fs::path& path) {
  Target target{path, {}};
  for (int links = 0; links <= kMaxLinks; ++links) {
    target.fd = descriptor_named(target.path);
    std::error_code error;
    if (target.fd || !fs::is_symlink(fs::symlink_status(target.path, error))) return target;
    const fs::path next = fs::read_symlink(target.path, error);
    if (error) fail("cannot write {}: {}", path.string(), error.message());
    target.path = parent_of(target.path) / next;
  }
  fail("cannot write {}: its symbolic links form a loop", path.string());
}

bool is_standard_output(const struct stat& file) {
  struct stat out {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == file.st_dev && out.st_ino == file.st_ino;
}

}  // namespace

void write_output(const fs::path& path, std::string_view content) {
  write_output(path, [&](int fd) { write_all(fd, content, path); });
}

void write_output(const fs::path& path, const std::function<void(int)>& write) {
  Target target = target_of(path);
  struct stat status {};
  const bool exists = ::stat(target.path.c_str(), &status) == 0;
  if (!target.fd && exists && is_standard_output(status)) target.fd = STDOUT_FILENO;
  if (target.fd) {
    if (*target.fd == STDOUT_FILENO) (void)std::fflush(stdout);
    return write(*target.fd);
  }
  if (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    const UniqueFd fd = open_file(target.path, O_WRONLY);
    return write(fd.get());
  }
  write_file_atomically(target.path, write);
}

}  // namespace lockstep
