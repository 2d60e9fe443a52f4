// Staging that goes on while the step runs: the process splits in three. One lets the step start as soon as
// it is told to, one works until the step is over, however that ends, and one watches over the work.
//
// Threads: start() is called while there is only one; the rest from any.
#pragma once

#include <functional>
#include <mutex>

#include "common/files.h"

namespace lockstep::transfer {

class Background {
 public:
  /// Returns in the process that works: in a session of its own, so that a Ctrl-C meant for the step passes
  /// it by, niced, with nothing but standard error. The calling process waits for release() and ends with
  /// what that says; where it is killed before, the others end too. They also end when nobody has the other
  /// end of the pipe `alive` open any more.
  ///
  /// Where a signal other than SIGTERM ends the work, the calling process ends with 128 + its number, or, if
  /// it was released before, `killed` is called with the number, in the process that watches.
  static Background& start(UniqueFd alive, const std::function<void(int signal)>& killed);

  /// Lets the calling process end.
  void release(int exit_code);

 private:
  Background(UniqueFd pipe, UniqueFd alive);
  void watch();

  UniqueFd pipe_, alive_;
  std::mutex mutex_;
  bool released_ = false;
};

}  // namespace lockstep::transfer
