// Staging that goes on while the step runs, in three processes: the caller, which ends when the step may
// start; a supervisor, which leaves the step's session; and its child, which stages until the step is over.
//
// Threads: start() while the process has one thread; the rest from any.
#pragma once

#include <mutex>

#include "common/files.h"

namespace lockstep::transfer {

class Background {
 public:
  /// Returns in the supervisor: in a session of its own, so that a Ctrl-C meant for the step does not reach
  /// it, niced, and with nothing open but standard error. The calling process waits for release() or end()
  /// and ends with that code; if it is killed before, the others end too. They also end once nobody holds the
  /// other end of the pipe `alive` any more: the step is over.
  static Background& start(UniqueFd alive);

  /// In the child, before it stages: ends this process when the step is over, or when the caller is killed.
  void end_with_step();
  /// In the child: lets the calling process end.
  void release(int exit_code);

  /// In the supervisor: whether the calling process was let go.
  bool released() const;
  /// In the supervisor: whether the step still runs. Waits a moment, since a signal may end both.
  bool step_runs() const;
  /// In the supervisor: ends this process, and the calling process unless it was let go.
  [[noreturn]] void end(int exit_code);

 private:
  Background(UniqueFd to_caller, UniqueFd released, UniqueFd alive);
  void watch();

  UniqueFd to_caller_, released_, alive_;
  std::mutex mutex_;  // of to_caller_
};

}  // namespace lockstep::transfer
