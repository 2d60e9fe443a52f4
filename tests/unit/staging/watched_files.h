// File systems in which something happens before the n-th call that changes anything.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "common/file_system.h"

namespace lockstep::staging_test {

/// What in_child() returns for a process that SIGKILL has ended.
inline constexpr int kKilled = 128 + SIGKILL;

/// A write is half done when something happens.
class WatchedFiles : public FileSystem {
 protected:
  /// 0, or the error that the call ends with.
  virtual int happens(int call) = 0;

  int call_open(const char* path, int flags, mode_t mode) override {
    return (flags & O_CREAT) != 0 && refused() ? -1 : FileSystem::call_open(path, flags, mode);
  }
  ssize_t call_pwrite(int fd, const void* from, std::size_t size, off_t offset) override {
    const ssize_t half = FileSystem::call_pwrite(fd, from, (size + 1) / 2, offset);
    return refused() ? -1 : half;
  }
  int call_fsync(int fd) override { return refused() ? -1 : FileSystem::call_fsync(fd); }
  int call_rename(const char* from, const char* to) override {
    return refused() ? -1 : FileSystem::call_rename(from, to);
  }
  int call_unlink(const char* path) override { return refused() ? -1 : FileSystem::call_unlink(path); }
  int call_mkdir(const char* path, mode_t mode) override {
    return refused() ? -1 : FileSystem::call_mkdir(path, mode);
  }
  int call_rmdir(const char* path) override { return refused() ? -1 : FileSystem::call_rmdir(path); }

 private:
  bool refused() {
    const int error = happens(++calls_);
    errno = error;
    return error != 0;
  }
  std::atomic<int> calls_ = 0;
};

/// Ends the process, as kill -9 does.
class KilledAt : public WatchedFiles {
 public:
  explicit KilledAt(int call) : call_(call) {}

 protected:
  int happens(int call) override {
    if (call == call_) ::raise(SIGKILL);
    return 0;
  }

 private:
  int call_;
};

/// Fails this one call.
class FailsAt : public WatchedFiles {
 public:
  FailsAt(int call, int error) : call_(call), error_(error) {}
  bool failed() const { return failed_; }

 protected:
  int happens(int call) override {
    if (call != call_) return 0;
    failed_ = true;
    return error_;
  }

 private:
  int call_;
  int error_;
  bool failed_ = false;
};

}  // namespace lockstep::staging_test
