// Shows other processes that this one, which holds a lock, is working. It may work without copying: it waits
// for other nodes, reads a copy back, or removes old objects. Processes that wait for the lock look at the
// time of the lock file (Store::lock()).
//
// Threads: one at a time. It starts its own, and has joined it when the destructor returns.
#pragma once

#include <chrono>
#include <thread>

#include "common/pending_calls.h"

namespace lockstep::transfer {

class Heartbeat {
 public:
  /// Touches the open file once in each `beat`, except while a system call of this process has been pending
  /// for longer than `call_timeout`. The file must stay open.
  Heartbeat(int fd, std::chrono::milliseconds call_timeout,
            std::chrono::milliseconds beat = std::chrono::seconds(1));

 private:
  PendingCalls calls_;
  std::jthread thread_;
};

}  // namespace lockstep::transfer
