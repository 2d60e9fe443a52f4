#include "common/file_system_around.h"

#include <sys/file.h>

#include <cerrno>

namespace lockstep {

template <typename Call>
auto FileSystemAround::around(Call call, bool writes_out) {
  std::shared_ptr<void> during = around_(writes_out);
  const auto result = call();
  const int error = errno;
  during.reset();
  errno = error;
  return result;
}

int FileSystemAround::call_open(const char* path, int flags, mode_t mode) {
  return around([&] { return inner_.call_open(path, flags, mode); });
}
ssize_t FileSystemAround::call_pread(int fd, void* into, std::size_t size, off_t offset) {
  return around([&] { return inner_.call_pread(fd, into, size, offset); });
}
ssize_t FileSystemAround::call_pwrite(int fd, const void* from, std::size_t size, off_t offset) {
  return around([&] { return inner_.call_pwrite(fd, from, size, offset); });
}
int FileSystemAround::call_fallocate(int fd, off_t size) {
  return around([&] { return inner_.call_fallocate(fd, size); });
}
int FileSystemAround::call_fsync(int fd) {
  return around([&] { return inner_.call_fsync(fd); }, true);
}
int FileSystemAround::call_syncfs(int fd) {
  return around([&] { return inner_.call_syncfs(fd); }, true);
}
int FileSystemAround::call_sync_file_range(int fd, off_t offset, off_t size) {
  return around([&] { return inner_.call_sync_file_range(fd, offset, size); }, true);
}
int FileSystemAround::call_chmod(const char* path, mode_t mode) {
  return around([&] { return inner_.call_chmod(path, mode); });
}
int FileSystemAround::call_lchown(const char* path, uid_t user, gid_t group) {
  return around([&] { return inner_.call_lchown(path, user, group); });
}
int FileSystemAround::call_utimensat(const char* path, const struct timespec* times) {
  return around([&] { return inner_.call_utimensat(path, times); });
}
int FileSystemAround::call_rename(const char* from, const char* to) {
  return around([&] { return inner_.call_rename(from, to); });
}
int FileSystemAround::call_exchange(const char* a, const char* b) {
  return around([&] { return inner_.call_exchange(a, b); });
}
int FileSystemAround::call_link(const char* from, const char* to) {
  return around([&] { return inner_.call_link(from, to); });
}
int FileSystemAround::call_symlink(const char* target, const char* at) {
  return around([&] { return inner_.call_symlink(target, at); });
}
int FileSystemAround::call_unlink(const char* path) {
  return around([&] { return inner_.call_unlink(path); });
}
int FileSystemAround::call_mkdir(const char* path, mode_t mode) {
  return around([&] { return inner_.call_mkdir(path, mode); });
}
int FileSystemAround::call_rmdir(const char* path) {
  return around([&] { return inner_.call_rmdir(path); });
}
int FileSystemAround::call_flock(int fd, int operation) {
  if ((operation & LOCK_NB) == 0) return inner_.call_flock(fd, operation);
  return around([&] { return inner_.call_flock(fd, operation); });
}
int FileSystemAround::call_lstat(const char* path, struct stat* into) {
  return around([&] { return inner_.call_lstat(path, into); });
}
int FileSystemAround::call_statvfs(const char* path, struct statvfs* into) {
  return around([&] { return inner_.call_statvfs(path, into); });
}
int FileSystemAround::call_fchmod(int fd, mode_t mode) {
  return around([&] { return inner_.call_fchmod(fd, mode); });
}
int FileSystemAround::call_openat(int folder, const char* name, int flags) {
  return around([&] { return inner_.call_openat(folder, name, flags); });
}
int FileSystemAround::call_unlinkat(int folder, const char* name, int flags) {
  return around([&] { return inner_.call_unlinkat(folder, name, flags); });
}

}  // namespace lockstep
