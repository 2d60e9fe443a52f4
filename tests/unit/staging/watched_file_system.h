// A file system that runs code before each call: to fail the call, kill the process, or let another one run.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>

#include "common/file_system.h"

namespace lockstep::staging_test {

/// A file system that calls `before` before each call that changes, locks or opens something. `before` gets
/// the call and its number, from 1, and returns 0, or the error with which the call fails. Half of a write is
/// done by then.
class WatchedFileSystem : public FileSystem {
 public:
  using Before = std::function<int(int n, const FileCall& call)>;
  /// With `reads`, reads and syncfs count as calls too.
  explicit WatchedFileSystem(Before before, bool reads = false) : before_(std::move(before)), reads_(reads) {}
  int calls() const { return calls_; }
  ssize_t call(const FileCall& call) override;

 private:
  bool watches(Kind kind) const;

  Before before_;
  bool reads_;
  std::atomic<int> calls_ = 0;
};

/// What in_child() returns for a process that SIGKILL has ended.
inline constexpr int kKilled = 128 + SIGKILL;

/// Ends the process before that call, as kill -9 does.
class KilledAt : public WatchedFileSystem {
 public:
  explicit KilledAt(int call, bool reads = false)
      : WatchedFileSystem(
            [call](int now, const FileCall&) {
              if (now == call) ::raise(SIGKILL);
              return 0;
            },
            reads) {}
};

/// Fails this one call.
class FailsAt : public WatchedFileSystem {
 public:
  FailsAt(int call, int error, bool reads = false)
      : WatchedFileSystem([call, error](int now, const FileCall&) { return now == call ? error : 0; }, reads),
        call_(call) {}
  bool failed() const { return calls() >= call_; }

 private:
  int call_;
};

}  // namespace lockstep::staging_test
