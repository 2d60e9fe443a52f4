// The Work that all communicators of this folder hand out: who asked for what, whether it is done, how it
// failed.
//
// Threads: one thread runs and finishes it, any thread may ask and wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "runtime/comm/work.h"

namespace lockstep::comm {

class Operation : public Work {
 public:
  /// `name` says what it is in errors: "all_reduce of bucket 3 (26214400 bytes)".
  Operation(std::string name, std::function<void()> body);

  bool done() const override { return done_.load(std::memory_order_acquire); }
  void wait() override;
  WorkTimes times() const override;

  const std::string& name() const { return name_; }

  /// Does what was asked for; never throws: wait() does.
  void run();

 private:
  std::string name_;
  std::function<void()> body_;
  std::exception_ptr error_;
  WorkTimes times_;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
};

/// "all_reduce of bucket 3 (1024 bytes)"
std::string describe(std::string_view kind, std::string_view label, std::size_t bytes);

}  // namespace lockstep::comm
