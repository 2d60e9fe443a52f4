#include "runtime/comm/operation.h"

#include "common/clock.h"
#include "common/error.h"
#include "runtime/comm/control/activity.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/timeout.h"
#include "runtime/profile/spans.h"

namespace lockstep::comm {

Operation::Operation(std::string name, Driver* driver) : name_(std::move(name)), driver_(driver) {
  times_.asked_ns = monotonic_ns();
  number_ = note_asked(name_);
}

void Operation::begin() {
  note_began(number_);
  const std::scoped_lock lock(mutex_);
  times_.began_ns = monotonic_ns();
}

void Operation::set_late_rank(std::uint64_t asked_ns, int rank) {
  const std::scoped_lock lock(mutex_);
  times_.all_asked_ns = asked_ns;
  times_.late_rank = rank;
}

void Operation::finish(std::exception_ptr error) {
  note_ended(number_);
  {
    const std::scoped_lock lock(mutex_);
    error_ = std::move(error);
    times_.ended_ns = monotonic_ns();
    if (profile::tracing()) {
      profile::add_span({.kind = profile::SpanKind::collective,
                         .name = name_,
                         .begin_ns = times_.asked_ns,
                         .end_ns = times_.ended_ns,
                         .all_asked_ns = times_.all_asked_ns,
                         .late_rank = times_.late_rank});
    }
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Operation::run(const std::function<void()>& body) {
  begin();
  std::exception_ptr error;
  try {
    body();
  } catch (...) {
    error = std::current_exception();
  }
  finish(std::move(error));
}

bool Operation::done() const {
  if (!ended() && driver_ != nullptr) driver_->drive();
  return ended();
}

void Operation::wait() {
  if (!ended()) {
    const WaitingNote note;
    if (driver_ != nullptr) {
      driver_->drive_until_ended(*this);
    } else {
      std::unique_lock lock(mutex_);
      OperationTimeout timeout;
      while (!changed_.wait_for(lock, timeout.next_check(), [this] { return ended(); })) {
        if (timeout.expired()) end_job_by_timeout(name_);
      }
    }
  }
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    fail("{} failed on {}: {}", name_, this_rank_name(), error.what());
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
