#include "runtime/comm/failure.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "common/environment.h"
#include "common/error.h"
#include "runtime/comm/thread.h"
#include "runtime/comm/watch/activity.h"
#include "runtime/comm/watch/watch.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds kVerdict{3000};  // more than the watch takes
constexpr std::chrono::milliseconds kLeave{1500};

std::atomic<bool> ending{false};

struct Identity {
  std::string who = "rank 0";
  std::atomic<void (*)(int)> abort = nullptr;
};

Identity& identity() {
  static Identity instance;
  return instance;
}

[[noreturn]] void on_terminate() {
  std::string message = "ended by std::terminate";
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      message = error.what();
      // Libtorch appends a stack of C++ frames to its messages; the first line says what failed.
      message = message.substr(0, message.find('\n'));
    } catch (...) {
      message = "an exception that is no std::exception";
    }
  }
  end_job(message);
}

}  // namespace

void install_failure_handling(const std::string& who, void (*abort)(int exit_code)) {
  identity().who = who;
  identity().abort = abort;
  std::set_terminate(on_terminate);
}

void forget_how_to_abort() {
  identity().abort = nullptr;
}

const std::string& who_am_i() {
  return identity().who;
}

bool claim_end() {
  return !ending.exchange(true);
}

void wait_for_the_end() {
  std::this_thread::sleep_for(std::chrono::seconds(5));
  _exit(1);
}

void print_line(const std::string& line) {
  const std::string whole = fmt::format("lockstep: {}\n", line);
  // In one piece, so that lines of several ranks do not mix; and past stderr's lock, which a thread that
  // hangs may hold.
  static_cast<void>(!::write(STDERR_FILENO, whole.data(), whole.size()));
}

void leave_job(int exit_code, std::chrono::milliseconds patience) {
  start_thread([exit_code] {
    std::this_thread::sleep_for(kLeave);
    _exit(exit_code);
  }).detach();
  std::fflush(stdout);
  std::this_thread::sleep_for(patience);
  if (const auto abort = identity().abort.load()) {
    abort(exit_code);
  } else if (Watch::current() != nullptr) {
    std::this_thread::sleep_for(kLeave);  // MPI is ending here: one of the others aborts the job
  }
  _exit(exit_code);
}

void end_job(const std::string& message, int exit_code) {
  if (!claim_end()) wait_for_the_end();  // another thread's message is the first cause
  print_line(fmt::format("{}: {}", who_am_i(), message));
  if (Watch* watch = Watch::current()) watch->tell_end(exit_code);
  leave_job(exit_code, std::chrono::milliseconds(0));
}

void end_job_once(const std::string& message) {
  if (Watch* watch = Watch::current()) {
    watch->report_line(fmt::format("{}: {}", who_am_i(), message));
    std::this_thread::sleep_for(kVerdict);  // does not return where the watch can do its work
  }
  end_job(message);
}

void timed_out(const std::string& operation) {
  if (Watch* watch = Watch::current()) {
    watch->report_overdue(operation, operation_timeout());
    std::this_thread::sleep_for(kVerdict);  // does not return where the watch can do its work
  }
  end_job(
      fmt::format("{} did not end within {} s (LOCKSTEP_TIMEOUT); another rank is gone, stopped, or does "
                  "something else",
                  operation, operation_timeout().count()));
}

void await_verdict() {
  if (Watch::current() == nullptr) return;
  constexpr std::chrono::milliseconds kLook{20};
  for (int look = 0; look < 100; ++look) {
    if (ending) wait_for_the_end();
    std::this_thread::sleep_for(kLook);
  }
}

std::chrono::seconds operation_timeout() {
  static const std::chrono::seconds timeout = [] {
    const long seconds = environment::get_integer("LOCKSTEP_TIMEOUT").value_or(600);
    if (seconds <= 0) fail_usage("LOCKSTEP_TIMEOUT={} must be a number of seconds above 0", seconds);
    constexpr long kLongest = 10L * 365 * 24 * 3600;  // waiting counts in nanoseconds, in 64 bits
    return std::chrono::seconds(std::min(seconds, kLongest));
  }();
  return timeout;
}

bool Patience::over() {
  const auto now = std::chrono::steady_clock::now();
  waited_ += std::min<std::chrono::steady_clock::duration>(now - looked_, kLongestStep);
  looked_ = now;
  return waited_ >= operation_timeout();
}

std::chrono::steady_clock::duration Patience::look_again_in() const {
  constexpr std::chrono::steady_clock::duration kSlice = std::chrono::seconds(1);
  return std::clamp<std::chrono::steady_clock::duration>(operation_timeout() - waited_,
                                                         std::chrono::milliseconds(1), kSlice);
}

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::string what;
  WaitingNote note;
  std::thread watcher;
};

Deadline::Deadline(std::string what) : state_(std::make_unique<State>()) {
  state_->what = std::move(what);
  note_asked(state_->what);
  note_began(state_->what);
  state_->watcher = start_thread([state = state_.get()] {
    std::unique_lock lock(state->mutex);
    Patience patience;
    while (!patience.over()) {
      if (state->changed.wait_for(lock, patience.look_again_in(), [state] { return state->over; })) return;
    }
    timed_out(state->what);
  });
}

Deadline::~Deadline() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->over = true;
  }
  state_->changed.notify_one();
  state_->watcher.join();
  note_ended(state_->what);
}

}  // namespace lockstep::comm
