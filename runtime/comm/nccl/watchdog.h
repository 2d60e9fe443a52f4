// Operations on a device, and the thread that notices their end. The host continues while the device works, and the
// device would wait forever for a rank that has ended, so a thread must check.
//
// Threads: any thread adds and waits; the watchdog's thread finishes operations.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/comm/nccl/cuda.h"
#include "runtime/comm/nccl/session.h"
#include "runtime/comm/operation.h"

namespace lockstep::comm::nccl {

class DeviceOperation : public Operation {
 public:
  /// `stream` returns the stream on which the calling thread computes. `then` and `keep` as in ReduceOptions.
  DeviceOperation(std::string name, int device, std::function<void*()> stream, std::function<void()> then,
                  std::shared_ptr<const void> keep);

  /// Marks the operation's end: after the work that `stream` has now. Call it before Watchdog::add().
  void launched(cudaStream_t stream);

  bool done() const override;
  /// Makes the calling thread's stream wait; the thread itself does not.
  void wait() override;
  /// Blocks the thread.
  void wait_here();

  /// For the watchdog: whether the device has finished the operation. Throws Error if the device has failed.
  bool reached() const;
  void end();

 private:
  int device_;
  std::function<void*()> stream_;
  std::function<void()> then_;
  bool has_then_;
  std::shared_ptr<const void> keep_;
  Event event_;
};

class Watchdog {
 public:
  /// `lock` guards the session.
  Watchdog(Session& session, std::mutex& lock, int device);
  /// Returns when all operations have ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<DeviceOperation> operation);

 private:
  void serve();
  void wait_for_end(DeviceOperation& operation);

  Session& session_;
  std::mutex& session_lock_;
  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<DeviceOperation>> operations_;
  bool ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace lockstep::comm::nccl
