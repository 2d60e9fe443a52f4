// A file system in which something happens before the n-th call: an error, a kill, or another process's turn.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>

#include "common/file_system.h"

namespace lockstep::staging_test {

/// A file system in which something happens before each call that changes, locks or opens something: it is
/// told the call's number, from 1, and the call's name, and returns 0, or the error that the call is to end
/// with. A write is half done then.
class WatchedFileSystem : public FileSystem {
 public:
  using Before = std::function<int(int call, const char* name)>;
  explicit WatchedFileSystem(Before before) : before_(std::move(before)) {}
  int calls() const { return calls_; }

 protected:
  int call_open(const char* path, int flags, mode_t mode) override;
  ssize_t call_pwrite(int fd, const void* from, std::size_t size, off_t offset) override;
  int call_fallocate(int fd, off_t size) override;
  int call_fsync(int fd) override;
  int call_chmod(const char* path, mode_t mode) override;
  int call_rename(const char* from, const char* to) override;
  int call_exchange(const char* a, const char* b) override;
  int call_link(const char* from, const char* to) override;
  int call_symlink(const char* target, const char* at) override;
  int call_unlink(const char* path) override;
  int call_mkdir(const char* path, mode_t mode) override;
  int call_rmdir(const char* path) override;
  int call_flock(int fd, int operation) override;
  int call_statvfs(const char* path, struct statvfs* into) override;
  int call_fchmod(int fd, mode_t mode) override;
  int call_openat(int folder, const char* name, int flags) override;
  int call_unlinkat(int folder, const char* name, int flags) override;

  /// Whether a call of that name, which is counted, is to fail: errno says how.
  bool refused(const char* name);

 private:
  Before before_;
  std::atomic<int> calls_ = 0;
};

/// What in_child() returns for a process that SIGKILL has ended.
inline constexpr int kKilled = 128 + SIGKILL;

/// Ends the process before that call, as kill -9 does.
class KilledAt : public WatchedFileSystem {
 public:
  explicit KilledAt(int call)
      : WatchedFileSystem([call](int now, const char*) {
          if (now == call) ::raise(SIGKILL);
          return 0;
        }) {}
};

/// Fails this one call.
class FailsAt : public WatchedFileSystem {
 public:
  FailsAt(int call, int error)
      : WatchedFileSystem([call, error](int now, const char*) { return now == call ? error : 0; }),
        call_(call) {}
  bool failed() const { return calls() >= call_; }

 private:
  int call_;
};

}  // namespace lockstep::staging_test
