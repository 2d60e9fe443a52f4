#include "common/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>

#include "common/error.h"

namespace lockstep {
namespace {

// Of folders that remove_all() goes into; each takes a descriptor.
constexpr int kDeepest = 128;

std::vector<std::string> names_in(UniqueFd fd, const std::filesystem::path& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd.get()), &::closedir);
  if (!entries) fail_errno("cannot list {}", folder.string());
  (void)fd.release();  // the DIR owns it now
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) fail_errno("cannot list {}", folder.string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

FileSystem& FileSystem::real() {
  static FileSystem system;
  return system;
}

UniqueFd FileSystem::open(const Path& path, int flags, mode_t mode) {
  UniqueFd fd(call_open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) fail_errno("cannot open {}", path.string());
  return fd;
}

std::optional<UniqueFd> FileSystem::open_if_there(const Path& path, int flags) {
  UniqueFd fd(call_open(path.c_str(), flags | O_CLOEXEC, 0));
  if (fd) return fd;
  if (errno == ENOENT) return {};
  fail_errno("cannot open {}", path.string());
}

std::size_t FileSystem::read_at(int fd, std::span<std::byte> into, std::uint64_t offset, const Path& path) {
  for (;;) {
    const ssize_t got = call_pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail_errno("cannot read {} at offset {}", path.string(), offset);
  }
}

void FileSystem::write_at(int fd, std::span<const std::byte> from, std::uint64_t offset, const Path& path) {
  while (!from.empty()) {
    const ssize_t put = call_pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("cannot write {} at offset {}", path.string(), offset);
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void FileSystem::allocate(int fd, std::uint64_t size, const Path& path) {
  if (size == 0) return;
  while (call_fallocate(fd, static_cast<off_t>(size)) != 0) {
    if (errno == EOPNOTSUPP) return;
    if (errno != EINTR) fail_errno("cannot reserve {} bytes for {}", size, path.string());
  }
}

void FileSystem::sync(int fd, const Path& path) {
  if (call_fsync(fd) != 0) fail_errno("cannot sync {}", path.string());
}

void FileSystem::begin_sync(int fd, std::uint64_t offset, std::uint64_t size) {
  (void)call_sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(size));
}

void FileSystem::sync_all(int fd, const Path& path) {
  if (call_syncfs(fd) != 0) fail_errno("cannot sync the file system of {}", path.string());
}

void FileSystem::sync_folder(const Path& folder) {
  const UniqueFd fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  sync(fd.get(), folder);
}

// chmod(2) follows links and there is no other that does not; an O_PATH descriptor names what it was opened
// for, whatever takes its name afterwards.
int FileSystem::change_mode_of(int path_fd, mode_t mode) {
  return call_chmod(fmt::format("/proc/self/fd/{}", path_fd).c_str(), mode);
}

void FileSystem::change_mode(const Path& path, mode_t mode) {
  const UniqueFd fd(call_open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC, 0));
  if (!fd || change_mode_of(fd.get(), mode) != 0) fail_errno("cannot change the mode of {}", path.string());
}

bool FileSystem::set_modified(const Path& path, std::int64_t modified_ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                   {.tv_sec = modified_ns / kSecond, .tv_nsec = modified_ns % kSecond}};
  return call_utimensat(path.c_str(), times) == 0;
}

void FileSystem::change_group(const Path& path, gid_t group) {
  if (call_lchown(path.c_str(), static_cast<uid_t>(-1), group) != 0)
    fail_errno("cannot give {} to group {}", path.string(), group);
}

void FileSystem::rename(const Path& from, const Path& to) {
  if (call_rename(from.c_str(), to.c_str()) != 0)
    fail_errno("cannot rename {} to {}", from.string(), to.string());
}

bool FileSystem::exchange(const Path& a, const Path& b) {
  if (call_exchange(a.c_str(), b.c_str()) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail_errno("cannot exchange {} and {}", a.string(), b.string());
}

void FileSystem::link(const Path& from, const Path& to) {
  if (call_link(from.c_str(), to.c_str()) != 0)
    fail_errno("cannot link {} to {}", to.string(), from.string());
}

FileSystem::Linked FileSystem::try_link(const Path& from, const Path& to) {
  if (call_link(from.c_str(), to.c_str()) == 0) return Linked::made;
  if (errno == EEXIST) return Linked::name_taken;
  if (errno == EXDEV) return Linked::other_file_system;
  fail_errno("cannot link {} to {}", to.string(), from.string());
}

void FileSystem::symlink(const std::string& target, const Path& at) {
  if (call_symlink(target.c_str(), at.c_str()) != 0)
    fail_errno("cannot make the symbolic link {}", at.string());
}

void FileSystem::unlink(const Path& path) {
  if (call_unlink(path.c_str()) != 0) fail_errno("cannot remove {}", path.string());
}

bool FileSystem::unlink_if_there(const Path& path) {
  if (call_unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  fail_errno("cannot remove {}", path.string());
}

bool FileSystem::make_folder(const Path& path, mode_t mode) {
  if (call_mkdir(path.c_str(), mode) == 0) return true;
  if (errno == EEXIST) return false;
  fail_errno("cannot make the folder {}", path.string());
}

void FileSystem::remove_folder(const Path& path) {
  if (call_rmdir(path.c_str()) != 0) fail_errno("cannot remove {}", path.string());
}

std::vector<std::string> FileSystem::list(const Path& folder) {
  return names_in(open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW), folder);
}

std::optional<std::vector<std::string>> FileSystem::list_if_there(const Path& folder) {
  std::optional<UniqueFd> fd = open_if_there(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!fd) return {};
  return names_in(std::move(*fd), folder);
}

bool FileSystem::lock(int fd, LockKind kind, bool wait, const Path& path) {
  const int operation = (kind == LockKind::shared ? LOCK_SH : LOCK_EX) | (wait ? 0 : LOCK_NB);
  while (call_flock(fd, operation) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail_errno("cannot lock {}", path.string());
  }
  return true;
}

std::optional<struct stat> FileSystem::status(const Path& path) {
  struct stat found {};
  if (call_lstat(path.c_str(), &found) == 0) return found;
  if (errno == ENOENT || errno == ENOTDIR) return {};  // nothing lies below a file
  fail_errno("cannot stat {}", path.string());
}

std::uint64_t FileSystem::free_bytes(const Path& path) {
  struct statvfs disk {};
  if (call_statvfs(path.c_str(), &disk) != 0)
    fail_errno("cannot ask for the free space at {}", path.string());
  return static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
}

void FileSystem::remove_all(const Path& path) {
  const std::optional<struct stat> found = status(path);
  if (!found) return;
  if (!S_ISDIR(found->st_mode)) {
    unlink(path);
    return;
  }
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(call_open(path.c_str(), kFlags, 0));
  if (!fd && errno == EACCES) {
    change_mode(path, 0700);
    fd.reset(call_open(path.c_str(), kFlags, 0));
  }
  if (!fd) fail_errno("cannot open {}", path.string());
  remove_below(std::move(fd), path, 0);
  remove_folder(path);
}

// By descriptors: a name that becomes a link between two looks at it leads nowhere.
void FileSystem::remove_below(UniqueFd folder, const Path& path, int depth) {
  if (depth > kDeepest) fail("cannot remove {}: its folders are nested too deep", path.string());
  struct stat found {};
  if (::fstat(folder.get(), &found) != 0) fail_errno("cannot stat {}", path.string());
  if ((found.st_mode & 0700) != 0700 && call_fchmod(folder.get(), 0700) != 0)
    fail_errno("cannot change the mode of {}", path.string());
  const int fd = folder.get();
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd), &::closedir);
  if (!entries) fail_errno("cannot list {}", path.string());
  (void)folder.release();  // the DIR owns it now
  errno = 0;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat status {};
    if (::fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;
      fail_errno("cannot stat {}", (path / name).string());
    }
    remove_entry(fd, entry->d_name, S_ISDIR(status.st_mode), path / name, depth);
    errno = 0;
  }
  if (errno != 0) fail_errno("cannot list {}", path.string());
}

void FileSystem::remove_entry(int folder, const char* name, bool is_folder, const Path& path, int depth) {
  if (is_folder) {
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd fd(call_openat(folder, name, kFlags));
    if (!fd && errno == EACCES) {
      const UniqueFd closed(call_openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (closed && change_mode_of(closed.get(), 0700) == 0) fd.reset(call_openat(folder, name, kFlags));
    }
    if (!fd) fail_errno("cannot open {}", path.string());
    remove_below(std::move(fd), path, depth + 1);
  }
  if (call_unlinkat(folder, name, is_folder ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT)
    fail_errno("cannot remove {}", path.string());
}

void FileSystem::write_file(const Path& path, std::string_view content, mode_t mode) {
  const UniqueFd fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
  write_at(fd.get(), std::as_bytes(std::span(content)), 0, path);
  sync(fd.get(), path);
}

int FileSystem::call_open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}

ssize_t FileSystem::call_pread(int fd, void* into, std::size_t size, off_t offset) {
  return ::pread(fd, into, size, offset);
}

ssize_t FileSystem::call_pwrite(int fd, const void* from, std::size_t size, off_t offset) {
  return ::pwrite(fd, from, size, offset);
}

int FileSystem::call_fallocate(int fd, off_t size) {
  // Not posix_fallocate: where the file system cannot, glibc writes a byte into every block instead.
  return ::fallocate(fd, 0, 0, size);
}

int FileSystem::call_fsync(int fd) {
  return ::fsync(fd);
}
int FileSystem::call_syncfs(int fd) {
  return ::syncfs(fd);
}
int FileSystem::call_sync_file_range(int fd, off_t offset, off_t size) {
  return ::sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE);
}
int FileSystem::call_chmod(const char* path, mode_t mode) {
  return ::chmod(path, mode);
}
int FileSystem::call_lchown(const char* path, uid_t user, gid_t group) {
  return ::lchown(path, user, group);
}
int FileSystem::call_utimensat(const char* path, const struct timespec* times) {
  return ::utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}
int FileSystem::call_rename(const char* from, const char* to) {
  return std::rename(from, to);
}
int FileSystem::call_exchange(const char* a, const char* b) {
  return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}
int FileSystem::call_link(const char* from, const char* to) {
  return ::link(from, to);
}
int FileSystem::call_symlink(const char* target, const char* at) {
  return ::symlink(target, at);
}
int FileSystem::call_unlink(const char* path) {
  return ::unlink(path);
}
int FileSystem::call_mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}
int FileSystem::call_rmdir(const char* path) {
  return ::rmdir(path);
}
int FileSystem::call_flock(int fd, int operation) {
  return ::flock(fd, operation);
}
int FileSystem::call_lstat(const char* path, struct stat* into) {
  return ::lstat(path, into);
}
int FileSystem::call_statvfs(const char* path, struct statvfs* into) {
  return ::statvfs(path, into);
}
int FileSystem::call_fchmod(int fd, mode_t mode) {
  return ::fchmod(fd, mode);
}
int FileSystem::call_openat(int folder, const char* name, int flags) {
  return ::openat(folder, name, flags);
}
int FileSystem::call_unlinkat(int folder, const char* name, int flags) {
  return ::unlinkat(folder, name, flags);
}

}  // namespace lockstep
