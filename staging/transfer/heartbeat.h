// Shows other processes that this one, which holds locks, is working. It may work without copying: it waits for other
// nodes, reads a copy back, or removes old objects. Processes that wait for a lock look at the time of the lock file
// (Store::lock()).
//
// Threads: safe from any. It starts its own with the first file, and has joined it when the destructor returns.
#pragma once

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "common/pending_calls.h"

namespace lockstep::transfer {

class Heartbeat {
 public:
  /// Touches the open files once in each `beat`, except while a system call of this process has been pending for longer
  /// than `call_timeout`.
  explicit Heartbeat(std::chrono::milliseconds call_timeout,
                     std::chrono::milliseconds beat = std::chrono::seconds(1));

  /// A file that is touched until this object ends.
  class Beating {
   public:
    Beating() = default;
    Beating(Heartbeat& heartbeat, int fd) : heartbeat_(&heartbeat), fd_(fd) {}
    Beating(Beating&& other) noexcept { *this = std::move(other); }
    Beating& operator=(Beating&& other) noexcept {
      std::swap(heartbeat_, other.heartbeat_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    Beating(const Beating&) = delete;
    Beating& operator=(const Beating&) = delete;
    ~Beating() {
      if (heartbeat_ != nullptr) heartbeat_->stop_touching(fd_);
    }

   private:
    Heartbeat* heartbeat_ = nullptr;
    int fd_ = -1;
  };

  /// The file must stay open, and this heartbeat must live, as long as the result.
  Beating touch(int fd);

 private:
  void stop_touching(int fd);
  void run(const std::stop_token& stop);

  std::chrono::milliseconds call_timeout_;
  std::chrono::milliseconds beat_;
  PendingCalls calls_;
  std::mutex mutex_;
  std::multiset<int> files_;
  std::jthread thread_;
};

}  // namespace lockstep::transfer
