// Runs staging in a child process and watches its system calls from the parent. A network file system whose server is
// gone, or a disk that is dying, blocks a thread in the kernel for hours, and with it every node that waits for this
// one. The parent kills such a child and says on which file it was blocked, even if the kernel keeps the child alive
// until the call returns.
//
// Threads: call run_supervised() and end_child() while the process has one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::transfer {

/// The default time for a system call if `nodes` read from one source at the same time: five minutes, so that a file
/// server may restart, plus one second for each node, so that a slow server can deliver the 16 MiB that each node
/// requests at a time. Calls such as fsync may take six times as long, since they also wait for other processes' data.
/// Waiting for a lock or for a bandwidth limit does not count.
std::chrono::milliseconds default_call_timeout(std::size_t nodes);

struct SuperviseOptions {
  std::chrono::milliseconds call_timeout{};           ///< 0: none
  std::vector<std::filesystem::path> disk_folders{};  ///< on this node's disk; other paths belong to a source
  std::string disk_name{};                            ///< for messages
};

struct ChildEnd {
  int code = 0;  ///< its exit code, or 128 + the signal that ended it
  /// If a system call did not return in time: one line that says which. The child still runs.
  std::string stuck;
  bool disk = false;  ///< the call was for this node's disk
  pid_t pid = 0;

  int signal() const { return code > kSignalled ? code - kSignalled : 0; }

  static constexpr int kSignalled = 128;
};

/// Like fork(), returns twice: nullopt in the child, which then does the work; in the parent, how the child
/// ended or that it is stuck. The child does not outlive the parent. The parent is called lockstep-watch, so
/// that `pkill lockstep-stage` does not end it. Throws Error if no process can be started.
std::optional<ChildEnd> run_supervised(const SuperviseOptions& options);

/// Kills a stuck child and waits up to a second for its end. A call that cannot be interrupted delays the
/// end, and the child keeps its locks and connections until then.
void end_child(pid_t child);

}  // namespace lockstep::transfer
