// Staging that goes on while the step runs: the process splits in two, of which one lets the step start as
// soon as it is told to, and the other works until the step is over, however that ends.
//
// Threads: start() is called while there is only one; the rest from any.
#pragma once

#include <sys/types.h>

#include <mutex>

#include "common/files.h"

namespace lockstep::transfer {

class Background {
 public:
  /// Returns in the process that works: in a session of its own, so that a Ctrl-C meant for the step passes
  /// it by, niced, with nothing but standard error. The calling process waits for release() and ends with
  /// what that says; where it is killed before, the other ends too. From then on the other ends with the
  /// process `watched`; 0: with the parent of the calling process; or, where there is a `pipe`, when nobody
  /// has its other end open any more.
  static Background& start(pid_t watched, UniqueFd pipe = {});

  /// Lets the calling process end.
  void release(int exit_code);

 private:
  Background(UniqueFd pipe, UniqueFd watched);
  void watch();

  UniqueFd pipe_, watched_;
  std::mutex mutex_;
  bool released_ = false;
};

}  // namespace lockstep::transfer
