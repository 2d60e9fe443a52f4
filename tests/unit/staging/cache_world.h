// What the cache's tests build their worlds from: objects, steps that hold leases, and a file system in which
// something happens before the n-th call.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "common/files.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {

class CacheTest : public StagingTest {
 protected:
  fs::path cache() const { return folder_ / "cache"; }

  /// Begins, fills and publishes an object of one file.
  static void publish(cache::Store& store, const std::string& name, const std::string& content);

  /// Runs `work` as that user in a child; its exit code as of in_child(). Needs root.
  static int as_user(uid_t user, const std::function<void()>& work);

  /// Names in a folder, none where it is not there.
  static std::vector<std::string> names(const fs::path& folder);

  /// The lease file of a step that lives as long as this, as slurmstepd holds it.
  class Step {
   public:
    Step(const cache::Store& store, const std::string& step);
    const fs::path& file() const { return file_; }

   private:
    fs::path file_;
    UniqueFd fd_;
  };
};

/// A file system in which something happens before each call that changes, locks or opens something: it is
/// told the call's number, from 1, and the call's name, and returns 0, or the error that the call is to end
/// with.
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

 private:
  bool refused(const char* name);

  Before before_;
  std::atomic<int> calls_ = 0;
};

}  // namespace lockstep::staging_test
