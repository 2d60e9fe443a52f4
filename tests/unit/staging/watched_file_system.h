// File systems that run a test's code at each call: to fail the call, kill the process, or let another one run.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "common/file_system.h"

namespace lockstep::staging_test {

namespace fs = std::filesystem;

/// Makes a call as the real file system does.
inline ssize_t real_call(const FileCall& call) {
  return FileSystem::real().call(call);
}
/// Fails a call with this error.
inline ssize_t failed_call(int error) {
  errno = error;
  return -1;
}

/// A file system whose calls all go through a function.
class HookedFileSystem : public FileSystem {
 public:
  using Hook = std::function<ssize_t(const FileCall& call)>;
  explicit HookedFileSystem(Hook hook) : hook_(std::move(hook)) {}
  ssize_t call(const FileCall& call) override { return hook_(call); }

 private:
  Hook hook_;
};

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

/// A read of a source's files.
struct SourceRead {
  int n = 0;  ///< from 1
  /// The same of the reads of shards; 0 for other files. Every node that copies reads at least one chunk. A slow one may read
  /// no more: the others take over the rest.
  int of_shards = 0;
  fs::path file;
  std::uint64_t offset = 0;
};

/// A file system that calls functions at each read of a source.
class SourceReads : public FileSystem {
 public:
  using Before = std::function<void(const SourceRead&)>;
  using After = std::function<void(const SourceRead&, std::span<std::byte> bytes)>;
  /// `before` is called before each read of a file below the folder; `after` may change what was read.
  SourceReads(fs::path folder, Before before, After after = {})
      : folder_(std::move(folder)), before_(std::move(before)), after_(std::move(after)) {}
  /// The number of reads so far.
  int reads() const { return reads_; }
  ssize_t call(const FileCall& call) override {
    const std::string file = call.path;
    if (call.kind != Kind::read || !file.starts_with(folder_.string() + "/")) return FileSystem::call(call);
    const bool of_shard = fs::path(file).extension() == ".tar";
    const SourceRead read{.n = ++reads_,
                          .of_shards = of_shard ? ++shard_reads_ : 0,
                          .file = file,
                          .offset = static_cast<std::uint64_t>(call.offset)};
    if (before_) before_(read);
    const ssize_t got = FileSystem::call(call);
    if (after_ && got > 0) after_(read, {call.into, static_cast<std::size_t>(got)});
    return got;
  }

 private:
  fs::path folder_;
  Before before_;
  After after_;
  std::atomic<int> reads_ = 0;
  std::atomic<int> shard_reads_ = 0;
};

}  // namespace lockstep::staging_test
