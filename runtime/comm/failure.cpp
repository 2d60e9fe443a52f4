#include "runtime/comm/failure.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "common/error.h"
#include "common/thread.h"
#include "runtime/comm/control/activity.h"
#include "runtime/comm/control/control_channel.h"
#include "runtime/comm/job_end.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds kVerdictWait{3000};  // longer than the control channel takes

std::string& mutable_rank_name() {
  static std::string name = "rank 0";
  return name;
}

[[noreturn]] void on_terminate() {
  const auto current = std::current_exception();
  end_job(current ? first_line_of(current) : "ended by std::terminate");
}

}  // namespace

std::string first_line_of(const std::exception_ptr& exception) {
  std::string text;
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an exception that is not a std::exception";
  }
  return text.substr(0, text.find('\n'));
}

void install_failure_handling(const std::string& rank_name, void (*abort)(int exit_code)) {
  mutable_rank_name() = rank_name;
  set_abort_function(abort);
  std::set_terminate(on_terminate);
}

const std::string& this_rank_name() {
  return mutable_rank_name();
}

void end_job(const std::string& message, int exit_code) {
  if (!claim_job_end()) wait_for_job_end();  // another thread's message is the first cause
  print_line(fmt::format("{}: {}", this_rank_name(), message));
  ControlChannel* channel = ControlChannel::current();
  if (channel != nullptr) channel->announce_end(exit_code);
  leave_job(exit_code, std::chrono::milliseconds(0), channel != nullptr);
}

void end_job_once(const std::string& message) {
  if (ControlChannel* channel = ControlChannel::current()) {
    channel->report_failure(fmt::format("{}: {}", this_rank_name(), message));
    std::this_thread::sleep_for(kVerdictWait);  // the control channel ends the process, if it works
  }
  end_job(message);
}

void end_job_by_timeout(const std::string& operation, const std::string& advice) {
  if (ControlChannel* channel = ControlChannel::current()) {
    channel->report_overdue(operation, operation_timeout());
    std::this_thread::sleep_for(kVerdictWait);  // the control channel ends the process, if it works
  }
  end_job(
      fmt::format("{} did not end within {} s (LOCKSTEP_TIMEOUT); {}", operation, operation_timeout().count(),
                  advice.empty() ? "another rank has ended, is stopped, or runs another operation" : advice));
}

void await_verdict() {
  if (ControlChannel::current() == nullptr) return;
  constexpr std::chrono::milliseconds kCheckInterval{20};
  for (int check = 0; check < 100; ++check) {
    if (job_end_is_claimed()) wait_for_job_end();
    std::this_thread::sleep_for(kCheckInterval);
  }
}

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::string operation;
  std::string advice;
  std::uint64_t number = 0;  // of the operation
  WaitingNote note;
  std::thread timer;
};

Deadline::Deadline(std::string operation, std::string advice) : state_(std::make_unique<State>()) {
  state_->operation = std::move(operation);
  state_->advice = std::move(advice);
  state_->number = note_asked(state_->operation);
  note_began(state_->number);
  state_->timer = start_thread([state = state_.get()] {
    std::unique_lock lock(state->mutex);
    OperationTimeout timeout;
    while (!timeout.expired()) {
      if (state->changed.wait_for(lock, timeout.next_check(), [state] { return state->over; })) return;
    }
    end_job_by_timeout(state->operation, state->advice);
  });
}

Deadline::~Deadline() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->over = true;
  }
  state_->changed.notify_one();
  state_->timer.join();
  note_ended(state_->number);
}

}  // namespace lockstep::comm
