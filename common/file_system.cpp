#include "common/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "common/error.h"
#include "common/pending_calls.h"

namespace lockstep {
namespace {

constexpr int kMaxDepth = 128;  // folder levels in remove_all(): each holds a descriptor
constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

int descriptor(ssize_t result) {
  return static_cast<int>(result);
}

/// Makes a call that other processes can see (pending_calls.h).
ssize_t run(FileSystem& system, const FileCall& call) {
  // Does not record a wait for a lock: another process may hold the lock for a long time.
  if (call.kind == FileCall::Kind::flock && (call.flags & LOCK_NB) == 0) return system.call(call);
  const PendingCall pending(call.path, call.kind == FileCall::Kind::fsync ||
                                           call.kind == FileCall::Kind::syncfs ||
                                           call.kind == FileCall::Kind::sync_file_range);
  return system.call(call);
}

const char* name_in_folder(const char* path) {
  return std::strrchr(path, '/') + 1;
}

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
  UniqueFd fd(descriptor(
      run(*this, {.kind = Kind::open, .path = path.c_str(), .flags = flags | O_CLOEXEC, .mode = mode})));
  if (!fd) fail_errno("cannot open {}", path.string());
  return fd;
}

std::optional<UniqueFd> FileSystem::open_if_there(const Path& path, int flags) {
  UniqueFd fd(descriptor(run(*this, {.kind = Kind::open, .path = path.c_str(), .flags = flags | O_CLOEXEC})));
  if (fd) return fd;
  if (errno == ENOENT || errno == ESTALE) return {};  // ESTALE: another node has removed it meanwhile
  fail_errno("cannot open {}", path.string());
}

std::size_t FileSystem::read_at(int fd, std::span<std::byte> into, std::uint64_t offset, const Path& path) {
  for (;;) {
    const ssize_t got = run(*this, {.kind = Kind::read,
                                    .path = path.c_str(),
                                    .fd = fd,
                                    .into = into.data(),
                                    .size = into.size(),
                                    .offset = static_cast<off_t>(offset)});
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail_errno("cannot read {} at offset {}", path.string(), offset);
  }
}

void FileSystem::write_at(int fd, std::span<const std::byte> from, std::uint64_t offset, const Path& path) {
  while (!from.empty()) {
    const ssize_t put = run(*this, {.kind = Kind::write,
                                    .path = path.c_str(),
                                    .fd = fd,
                                    .from = from.data(),
                                    .size = from.size(),
                                    .offset = static_cast<off_t>(offset)});
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("cannot write {} at offset {}", path.string(), offset);
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void FileSystem::allocate(int fd, std::uint64_t size, const Path& path) {
  if (size == 0) return;
  while (run(*this, {.kind = Kind::fallocate, .path = path.c_str(), .fd = fd, .size = size}) != 0) {
    if (errno == EOPNOTSUPP) return;
    if (errno != EINTR) fail_errno("cannot reserve {} bytes for {}", size, path.string());
  }
}

void FileSystem::set_size(int fd, std::uint64_t size, const Path& path) {
  if (run(*this, {.kind = Kind::ftruncate, .path = path.c_str(), .fd = fd, .size = size}) != 0)
    fail_errno("cannot set the size of {} to {} bytes", path.string(), size);
}

bool FileSystem::make_hole(int fd, std::uint64_t offset, std::uint64_t size, const Path& path) {
  while (run(*this, {.kind = Kind::fallocate,
                     .path = path.c_str(),
                     .fd = fd,
                     .flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     .size = size,
                     .offset = static_cast<off_t>(offset)}) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
    if (errno != EINTR) fail_errno("cannot make a hole in {} at offset {}", path.string(), offset);
  }
  return true;
}

void FileSystem::sync(int fd, const Path& path) {
  if (run(*this, {.kind = Kind::fsync, .path = path.c_str(), .fd = fd}) != 0)
    fail_errno("cannot sync {}", path.string());
}

void FileSystem::begin_sync(int fd, std::uint64_t offset, std::uint64_t size, const Path& path) {
  (void)run(*this, {.kind = Kind::sync_file_range,
                    .path = path.c_str(),
                    .fd = fd,
                    .size = size,
                    .offset = static_cast<off_t>(offset)});
}

void FileSystem::sync_all(int fd, const Path& path) {
  if (run(*this, {.kind = Kind::syncfs, .path = path.c_str(), .fd = fd}) != 0)
    fail_errno("cannot sync the file system of {}", path.string());
}

void FileSystem::sync_folder(const Path& folder) {
  const UniqueFd fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  sync(fd.get(), folder);
}

void FileSystem::change_mode(const Path& path, mode_t mode) {
  const UniqueFd fd(descriptor(
      run(*this, {.kind = Kind::open, .path = path.c_str(), .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC})));
  if (!fd || run(*this, {.kind = Kind::chmod, .path = path.c_str(), .fd = fd.get(), .mode = mode}) != 0)
    fail_errno("cannot change the mode of {}", path.string());
}

bool FileSystem::set_modified(const Path& path, std::int64_t modified_ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                   {.tv_sec = modified_ns / kSecond, .tv_nsec = modified_ns % kSecond}};
  return run(*this, {.kind = Kind::utimensat, .path = path.c_str(), .times = times}) == 0;
}

void FileSystem::change_group(const Path& path, gid_t group) {
  if (run(*this, {.kind = Kind::lchown, .path = path.c_str(), .group = group}) != 0)
    fail_errno("cannot give {} to group {}", path.string(), group);
}

void FileSystem::rename(const Path& from, const Path& to) {
  if (run(*this, {.kind = Kind::rename, .path = from.c_str(), .to = to.c_str()}) != 0)
    fail_errno("cannot rename {} to {}", from.string(), to.string());
}

bool FileSystem::exchange(const Path& a, const Path& b) {
  if (run(*this, {.kind = Kind::exchange, .path = a.c_str(), .to = b.c_str()}) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail_errno("cannot exchange {} and {}", a.string(), b.string());
}

void FileSystem::link(const Path& from, const Path& to) {
  if (run(*this, {.kind = Kind::link, .path = from.c_str(), .to = to.c_str()}) != 0)
    fail_errno("cannot link {} to {}", to.string(), from.string());
}

FileSystem::Linked FileSystem::try_link(const Path& from, const Path& to) {
  if (run(*this, {.kind = Kind::link, .path = from.c_str(), .to = to.c_str()}) == 0) return Linked::made;
  if (errno == EEXIST) return Linked::name_taken;
  if (errno == EXDEV) return Linked::other_file_system;
  fail_errno("cannot link {} to {}", to.string(), from.string());
}

void FileSystem::symlink(const std::string& target, const Path& at) {
  if (run(*this, {.kind = Kind::symlink, .path = at.c_str(), .to = target.c_str()}) != 0)
    fail_errno("cannot make the symbolic link {}", at.string());
}

void FileSystem::unlink(const Path& path) {
  if (run(*this, {.kind = Kind::unlink, .path = path.c_str()}) != 0)
    fail_errno("cannot remove {}", path.string());
}

bool FileSystem::unlink_if_there(const Path& path) {
  if (run(*this, {.kind = Kind::unlink, .path = path.c_str()}) == 0) return true;
  if (errno == ENOENT) return false;
  fail_errno("cannot remove {}", path.string());
}

bool FileSystem::make_folder(const Path& path, mode_t mode) {
  if (run(*this, {.kind = Kind::mkdir, .path = path.c_str(), .mode = mode}) == 0) return true;
  if (errno == EEXIST) return false;
  fail_errno("cannot make the folder {}", path.string());
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
  while (run(*this, {.kind = Kind::flock, .path = path.c_str(), .fd = fd, .flags = operation}) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail_errno("cannot lock {}", path.string());
  }
  return true;
}

std::optional<struct stat> FileSystem::status(const Path& path) {
  struct stat found {};
  if (run(*this, {.kind = Kind::lstat, .path = path.c_str(), .status = &found}) == 0) return found;
  if (errno == ENOENT || errno == ENOTDIR) return {};  // nothing lies below a file
  fail_errno("cannot stat {}", path.string());
}

std::uint64_t FileSystem::free_bytes(const Path& path) {
  struct statvfs space {};
  if (run(*this, {.kind = Kind::statvfs, .path = path.c_str(), .space = &space}) != 0)
    fail_errno("cannot get the free space at {}", path.string());
  return static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
}

void FileSystem::remove_all(const Path& path) {
  const std::optional<struct stat> found = status(path);
  if (!found) return;
  if (!S_ISDIR(found->st_mode)) {
    unlink(path);
    return;
  }
  UniqueFd fd(descriptor(run(*this, {.kind = Kind::open, .path = path.c_str(), .flags = kFolder})));
  if (!fd) fail_errno("cannot open {}", path.string());
  remove_below(std::move(fd), path, 0);
  if (run(*this, {.kind = Kind::rmdir, .path = path.c_str()}) != 0)
    fail_errno("cannot remove {}", path.string());
}

// Works with descriptors: a name that becomes a symbolic link in the meantime is not followed.
void FileSystem::remove_below(UniqueFd folder, const Path& path, int depth) {
  if (depth > kMaxDepth) fail("cannot remove {}: its folders are nested too deep", path.string());
  const int fd = folder.get();
  struct stat found {};
  if (::fstat(fd, &found) != 0) fail_errno("cannot stat {}", path.string());
  if ((found.st_mode & 0700) != 0700 &&
      run(*this, {.kind = Kind::fchmod, .path = path.c_str(), .fd = fd, .mode = 0700}) != 0)
    fail_errno("cannot change the mode of {}", path.string());
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
    remove_entry(fd, S_ISDIR(status.st_mode), path / name, depth);
    errno = 0;
  }
  if (errno != 0) fail_errno("cannot list {}", path.string());
}

void FileSystem::remove_entry(int folder, bool is_folder, const Path& path, int depth) {
  if (is_folder) {
    UniqueFd fd(
        descriptor(run(*this, {.kind = Kind::openat, .path = path.c_str(), .fd = folder, .flags = kFolder})));
    if (!fd) fail_errno("cannot open {}", path.string());
    remove_below(std::move(fd), path, depth + 1);
  }
  const int flags = is_folder ? AT_REMOVEDIR : 0;
  if (run(*this, {.kind = Kind::unlinkat, .path = path.c_str(), .fd = folder, .flags = flags}) != 0 &&
      errno != ENOENT)
    fail_errno("cannot remove {}", path.string());
}

void FileSystem::write_file(const Path& path, std::string_view content, mode_t mode) {
  const UniqueFd fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
  write_at(fd.get(), std::as_bytes(std::span(content)), 0, path);
  sync(fd.get(), path);
}

ssize_t FileSystem::call(const FileCall& call) {
  const auto size = static_cast<off_t>(call.size);
  switch (call.kind) {
    case Kind::open:
      return ::open(call.path, call.flags, call.mode);
    case Kind::openat:
      return ::openat(call.fd, name_in_folder(call.path), call.flags);
    case Kind::read:
      return ::pread(call.fd, call.into, call.size, call.offset);
    case Kind::write:
      return ::pwrite(call.fd, call.from, call.size, call.offset);
    case Kind::fallocate:
      // Not posix_fallocate: if the file system cannot reserve blocks, glibc writes a byte into each of them.
      return ::fallocate(call.fd, call.flags, call.offset, size);
    case Kind::ftruncate:
      return ::ftruncate(call.fd, size);
    case Kind::fsync:
      return ::fsync(call.fd);
    case Kind::syncfs:
      return ::syncfs(call.fd);
    case Kind::sync_file_range:
      return ::sync_file_range(call.fd, call.offset, size, SYNC_FILE_RANGE_WRITE);
    case Kind::chmod:
      // chmod(2) follows symbolic links. An O_PATH descriptor still refers to the file that was opened, even
      // if another file takes its name.
      return ::chmod(fmt::format("/proc/self/fd/{}", call.fd).c_str(), call.mode);
    case Kind::fchmod:
      return ::fchmod(call.fd, call.mode);
    case Kind::lchown:
      return ::lchown(call.path, static_cast<uid_t>(-1), call.group);
    case Kind::utimensat:
      return ::utimensat(AT_FDCWD, call.path, call.times, AT_SYMLINK_NOFOLLOW);
    case Kind::rename:
      return std::rename(call.path, call.to);
    case Kind::exchange:
      return ::renameat2(AT_FDCWD, call.path, AT_FDCWD, call.to, RENAME_EXCHANGE);
    case Kind::link:
      return ::link(call.path, call.to);
    case Kind::symlink:
      return ::symlink(call.to, call.path);
    case Kind::unlink:
      return ::unlink(call.path);
    case Kind::unlinkat:
      return ::unlinkat(call.fd, name_in_folder(call.path), call.flags);
    case Kind::mkdir:
      return ::mkdir(call.path, call.mode);
    case Kind::rmdir:
      return ::rmdir(call.path);
    case Kind::flock:
      return ::flock(call.fd, call.flags);
    case Kind::lstat:
      return ::lstat(call.path, call.status);
    case Kind::statvfs:
      return ::statvfs(call.path, call.space);
  }
  errno = ENOSYS;
  return -1;
}

}  // namespace lockstep
