// The Work of all communicators here: the name of the operation, its times, and its result.
//
// Threads: one thread at a time runs and finishes it; any thread may query and wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

class Operation;

/// Advances the operations of a communicator without a thread, from the thread that waits.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Returns when the operation has ended; ends the job if that takes too long.
  virtual void drive_until_ended(Operation& operation) = 0;
  /// Advances operations without waiting.
  virtual void drive() = 0;
};

class Operation : public Work {
 public:
  /// `name` names it in errors: "all_reduce of bucket 3 (26214400 bytes)". Without a driver another thread
  /// must finish it.
  explicit Operation(std::string name, Driver* driver = nullptr);

  /// Also advances it, if there is a driver.
  bool done() const override;
  /// The same, without advancing it.
  bool ended() const { return done_.load(std::memory_order_acquire); }
  void wait() override;
  WorkTimes times() const override;

  const std::string& name() const { return name_; }

  /// Work on it begins now.
  void begin();
  /// It has ended; `error` is null if it succeeded.
  void finish(std::exception_ptr error);
  /// begin(), then the body, then finish() with its exception.
  void run(const std::function<void()>& body);
  /// When the last rank asked for it, and which rank that was. Call it before finish().
  void set_late_rank(std::uint64_t asked_ns, int rank);

 private:
  std::string name_;
  std::uint64_t number_ = 0;  // in the record of this rank's activity
  Driver* driver_;
  std::exception_ptr error_;
  WorkTimes times_;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
};

/// "all_reduce of bucket 3 (1024 bytes)"
std::string describe(std::string_view kind, std::string_view label, std::size_t bytes);

}  // namespace lockstep::comm
