#include "tests/unit/staging/watched_file_system.h"

#include <cerrno>

namespace lockstep::staging_test {

bool WatchedFileSystem::refused(const char* name) {
  const int error = before_(++calls_, name);
  errno = error;
  return error != 0;
}

ssize_t WatchedFileSystem::call_pwrite(int fd, const void* from, std::size_t size, off_t offset) {
  const ssize_t half = FileSystem::call_pwrite(fd, from, size / 2, offset);
  if (half < 0 || refused("write")) return -1;
  return FileSystem::call_pwrite(fd, from, size, offset);
}
int WatchedFileSystem::call_open(const char* path, int flags, mode_t mode) {
  return refused("open") ? -1 : FileSystem::call_open(path, flags, mode);
}
int WatchedFileSystem::call_fallocate(int fd, off_t size) {
  return refused("fallocate") ? -1 : FileSystem::call_fallocate(fd, size);
}
int WatchedFileSystem::call_fsync(int) {
  return refused("fsync") ? -1 : 0;  // a killed process loses nothing that it has written, and this is quick
}
int WatchedFileSystem::call_chmod(const char* path, mode_t mode) {
  return refused("chmod") ? -1 : FileSystem::call_chmod(path, mode);
}
int WatchedFileSystem::call_rename(const char* from, const char* to) {
  return refused("rename") ? -1 : FileSystem::call_rename(from, to);
}
int WatchedFileSystem::call_exchange(const char* a, const char* b) {
  return refused("exchange") ? -1 : FileSystem::call_exchange(a, b);
}
int WatchedFileSystem::call_link(const char* from, const char* to) {
  return refused("link") ? -1 : FileSystem::call_link(from, to);
}
int WatchedFileSystem::call_symlink(const char* target, const char* at) {
  return refused("symlink") ? -1 : FileSystem::call_symlink(target, at);
}
int WatchedFileSystem::call_unlink(const char* path) {
  return refused("unlink") ? -1 : FileSystem::call_unlink(path);
}
int WatchedFileSystem::call_mkdir(const char* path, mode_t mode) {
  return refused("mkdir") ? -1 : FileSystem::call_mkdir(path, mode);
}
int WatchedFileSystem::call_rmdir(const char* path) {
  return refused("rmdir") ? -1 : FileSystem::call_rmdir(path);
}
int WatchedFileSystem::call_flock(int fd, int operation) {
  return refused("flock") ? -1 : FileSystem::call_flock(fd, operation);
}
int WatchedFileSystem::call_statvfs(const char* path, struct statvfs* into) {
  return refused("statvfs") ? -1 : FileSystem::call_statvfs(path, into);
}
int WatchedFileSystem::call_fchmod(int fd, mode_t mode) {
  return refused("fchmod") ? -1 : FileSystem::call_fchmod(fd, mode);
}
int WatchedFileSystem::call_openat(int folder, const char* name, int flags) {
  return refused("openat") ? -1 : FileSystem::call_openat(folder, name, flags);
}
int WatchedFileSystem::call_unlinkat(int folder, const char* name, int flags) {
  return refused("unlinkat") ? -1 : FileSystem::call_unlinkat(folder, name, flags);
}

}  // namespace lockstep::staging_test
