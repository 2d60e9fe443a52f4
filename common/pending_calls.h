// Records the system calls that the threads of a process are in, in memory shared with the parent process. A
// thread that is blocked in the kernel cannot be interrupted from within its process. The parent can see the
// blocked call here, name the file, and end the process.
//
// Threads: a PendingCall belongs to one thread; a PendingCalls to one thread of the parent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep {

struct CallTable;

/// Records that the calling thread is in a call for this path, until the object is destroyed. Has no effect
/// inside another PendingCall of the same thread, or if this process does not record its calls. Keeps errno.
class PendingCall {
 public:
  explicit PendingCall(const std::filesystem::path& path) : PendingCall(path.c_str(), false) {}
  /// `writes_out`: fsync or a similar call.
  PendingCall(const char* path, bool writes_out);
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

 private:
  bool begun_ = false;
};

/// The parent's view of the calls of one child.
class PendingCalls {
 public:
  struct Overdue {
    std::filesystem::path path;
    int times = 1;  ///< 6 if the call may take six times as long as others
  };

  /// For a child. Call before fork(). Throws Error.
  PendingCalls();
  /// Returns the calls of this process, which are recorded from now on. Throws Error.
  static PendingCalls of_this_process();
  ~PendingCalls();
  PendingCalls(const PendingCalls&) = delete;
  PendingCalls& operator=(const PendingCalls&) = delete;

  /// Records the calls of this process from now on. Call in the child while it has one thread. A forked
  /// process does not record its calls until it calls this itself.
  void record_here() const;

  /// Returns a call that was stuck for `checks` checks (6 × for fsync and similar calls). Time is counted in checks
  /// instead of read from a clock, so that none passes while the
  /// processes are stopped (a suspended job).
  std::optional<Overdue> look(int checks);

 private:
  explicit PendingCalls(CallTable* table);

  struct Seen {
    std::uint32_t turn = 0;
    int looks = 0;
  };

  CallTable* table_;
  std::vector<Seen> seen_;
};

}  // namespace lockstep
