// The Work that all communicators of this folder hand out: who asked for what, whether it is done, how it
// failed.
//
// Threads: one thread at a time runs and finishes it, any thread may ask and wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "runtime/comm/work.h"

namespace lockstep::comm {

class Operation;

/// What moves operations on where no thread of the communicator's does: whoever waits.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Returns when the operation has ended; ends the job when that takes too long.
  virtual void drive_until_ended(Operation& operation) = 0;
  /// Does what can be done without waiting.
  virtual void drive() = 0;
};

class Operation : public Work {
 public:
  /// `name` says what it is in errors: "all_reduce of bucket 3 (26214400 bytes)". Without a driver another
  /// thread is to finish it.
  explicit Operation(std::string name, Driver* driver = nullptr);

  /// Whoever asks again and again is the one who moves it on, where there is no thread for that.
  bool done() const override;
  /// The same, without moving anything.
  bool ended() const { return done_.load(std::memory_order_acquire); }
  void wait() override;
  WorkTimes times() const override;

  const std::string& name() const { return name_; }

  /// Work on it begins now.
  void begin();
  /// It has ended, with this error or none.
  void finish(std::exception_ptr error);
  /// begin(), the body, finish() with what it throws.
  void run(const std::function<void()>& body);
  /// Before finish(): when the last rank asked for it, and which one that was.
  void set_last_rank(std::uint64_t asked_ns, int rank);

 private:
  std::string name_;
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
