#include "runtime/comm/nccl/watchdog.h"

#include <pthread.h>

#include <chrono>

#include "common/error.h"
#include "common/thread.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm::nccl {
namespace {

// Only `then` and barriers wait for this check of the device.
constexpr std::chrono::microseconds kCheckInterval{200};
// NCCL's health is checked each time after so many of these checks.
constexpr int kHealthInterval = 500;

}  // namespace

DeviceOperation::DeviceOperation(std::string name, int device, std::function<void*()> stream,
                                 std::function<void()> then, std::shared_ptr<const void> keep)
    : Operation(std::move(name)),
      device_(device),
      stream_(std::move(stream)),
      then_(std::move(then)),
      has_then_(then_ != nullptr),
      keep_(std::move(keep)),
      event_(make_event()) {
}

void DeviceOperation::launched(cudaStream_t stream) {
  check(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
}

bool DeviceOperation::done() const {
  return Operation::done() || (!has_then_ && reached());
}

void DeviceOperation::wait() {
  use_device(device_);
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream_()), event_.get(), 0), "cudaStreamWaitEvent");
}

void DeviceOperation::wait_here() {
  Operation::wait();
}

bool DeviceOperation::reached() const {
  const cudaError_t code = cudaEventQuery(event_.get());
  if (code == cudaErrorNotReady) return false;
  check(code, "cudaEventQuery");
  return true;
}

void DeviceOperation::end() {
  std::exception_ptr error;
  try {
    if (then_) then_();
  } catch (...) {
    error = std::current_exception();
  }
  then_ = nullptr;  // releases what it captured
  keep_.reset();
  finish(error);
}

Watchdog::Watchdog(Session& session, std::mutex& lock, int device)
    : session_(session), session_lock_(lock), device_(device), thread_(start_thread([this] { serve(); })) {
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::add(std::shared_ptr<DeviceOperation> operation) {
  {
    const std::scoped_lock lock(mutex_);
    operations_.push_back(std::move(operation));
  }
  changed_.notify_one();
}

void Watchdog::serve() {
  pthread_setname_np(pthread_self(), "lockstep-nccl");
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !operations_.empty(); });
    if (operations_.empty()) return;
    // They are on one stream, so they end in this order.
    const auto operation = std::move(operations_.front());
    operations_.pop_front();
    lock.unlock();
    wait_for_end(*operation);
    lock.lock();
  }
}

// Returns when it has succeeded; otherwise the job ends.
void Watchdog::wait_for_end(DeviceOperation& operation) {
  OperationTimeout timeout;
  try {
    for (int check = 1; !operation.reached(); ++check) {
      if (check % kHealthInterval == 0) {
        const std::scoped_lock lock(session_lock_);
        session_.check_health();
      }
      // ncclCommAbort is not called: it would let the host go on with data that was never reduced.
      if (timeout.expired()) end_job_by_timeout(operation.name());
      std::this_thread::sleep_for(kCheckInterval);
    }
  } catch (const Error& error) {
    await_verdict();
    end_job(fmt::format("{} failed: {}", operation.name(), error.what()));
  }
  operation.end();
}

}  // namespace lockstep::comm::nccl
