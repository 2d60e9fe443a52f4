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
  /// Returns in the supervisor. It has a separate session, so that a Ctrl-C meant for the step does not reach it, a
  /// lower priority, and only standard error open. The calling process waits for release() or end() and exits with that
  /// code; if it is killed earlier, the other two end too. They also end when the step is over, that is, when the other
  /// end of the pipe `alive` is closed.
  static Background& start(UniqueFd alive);

  /// In the child, before it stages: ends this process when the step is over, or when the caller is killed.
  void end_with_step();
  /// In the child: lets the calling process exit with this code.
  void release(int exit_code);

  /// In the supervisor: whether the calling process was released.
  bool released() const;
  /// In the supervisor: whether the step still runs. Waits a moment, since a signal may end both.
  bool step_runs() const;
  /// In the supervisor: ends this process, and the calling process unless it was released.
  [[noreturn]] void end(int exit_code);

 private:
  Background(UniqueFd to_caller, UniqueFd released, UniqueFd alive);
  void watch();

  UniqueFd to_caller_, released_, alive_;
  std::mutex mutex_;  // guards to_caller_
};

}  // namespace lockstep::transfer
