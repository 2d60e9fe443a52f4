// Another file system with something around each of its calls, while which a thread may wait for the disk: to
// notice, from another thread, one that does not come back.
//
// Threads: safe from any, as what is around the calls is.
#pragma once

#include <functional>
#include <memory>

#include "common/file_system.h"

namespace lockstep {

class FileSystemAround : public FileSystem {
 public:
  /// Is told whether the call is one that writes to the disk what lies in memory, fsync and its like.
  using Around = std::function<std::shared_ptr<void>(bool writes_out)>;
  /// `around` is asked before each call; what it returns is dropped after the call. Locks that are waited for
  /// are not among them: who waits for another process does not wait for the disk. `inner` outlives this.
  FileSystemAround(FileSystem& inner, Around around) : inner_(inner), around_(std::move(around)) {}

 protected:
  int call_open(const char* path, int flags, mode_t mode) override;
  ssize_t call_pread(int fd, void* into, std::size_t size, off_t offset) override;
  ssize_t call_pwrite(int fd, const void* from, std::size_t size, off_t offset) override;
  int call_fallocate(int fd, off_t size) override;
  int call_fsync(int fd) override;
  int call_syncfs(int fd) override;
  int call_sync_file_range(int fd, off_t offset, off_t size) override;
  int call_chmod(const char* path, mode_t mode) override;
  int call_lchown(const char* path, uid_t user, gid_t group) override;
  int call_utimensat(const char* path, const struct timespec* times) override;
  int call_rename(const char* from, const char* to) override;
  int call_exchange(const char* a, const char* b) override;
  int call_link(const char* from, const char* to) override;
  int call_symlink(const char* target, const char* at) override;
  int call_unlink(const char* path) override;
  int call_mkdir(const char* path, mode_t mode) override;
  int call_rmdir(const char* path) override;
  int call_flock(int fd, int operation) override;
  int call_lstat(const char* path, struct stat* into) override;
  int call_statvfs(const char* path, struct statvfs* into) override;
  int call_fchmod(int fd, mode_t mode) override;
  int call_openat(int folder, const char* name, int flags) override;
  int call_unlinkat(int folder, const char* name, int flags) override;

 private:
  template <typename Call>
  auto around(Call call, bool writes_out = false);

  FileSystem& inner_;
  Around around_;
};

}  // namespace lockstep
