#include "runtime/comm/operation.h"

#include "common/clock.h"
#include "common/error.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm {

Operation::Operation(std::string name, std::function<void()> body)
    : name_(std::move(name)), body_(std::move(body)) {
  times_.asked_ns = monotonic_ns();
}

void Operation::run() {
  {
    const std::scoped_lock lock(mutex_);
    times_.began_ns = monotonic_ns();
  }
  std::exception_ptr error;
  try {
    body_();
  } catch (...) {
    error = std::current_exception();
  }
  body_ = nullptr;  // lets go of what it holds
  {
    const std::scoped_lock lock(mutex_);
    error_ = error;
    times_.ended_ns = monotonic_ns();
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Operation::wait() {
  if (!done()) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, operation_timeout(), [this] { return done(); })) {
      end_job(
          fmt::format("{} did not end within {} s (LOCKSTEP_TIMEOUT); another rank is gone, stopped, or does "
                      "something else",
                      name_, operation_timeout().count()));
    }
  }
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    fail("{} failed on {}: {}", name_, who_am_i(), error.what());
  }
}

WorkTimes Operation::times() const {
  const std::scoped_lock lock(mutex_);
  return times_;
}

std::string describe(std::string_view kind, std::string_view label, std::size_t bytes) {
  return fmt::format("{} of {} ({} bytes)", kind, label, bytes);
}

}  // namespace lockstep::comm
