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

namespace lockstep::comm {
namespace {

struct Identity {
  std::string who = "rank 0";
  void (*abort)(int) = nullptr;
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
  identity() = {who, abort};
  std::set_terminate(on_terminate);
}

const std::string& who_am_i() {
  return identity().who;
}

void end_job(const std::string& message, int exit_code) {
  static std::atomic<bool> ending{false};
  if (ending.exchange(true)) {  // another thread is at it; its message is the first cause
    std::this_thread::sleep_for(std::chrono::seconds(5));
    _exit(exit_code);
  }
  const std::string line = fmt::format("lockstep: {}: {}\n", who_am_i(), message);
  std::fflush(stdout);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  if (identity().abort != nullptr) {
    std::thread([exit_code] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      _exit(exit_code);
    }).detach();
    identity().abort(exit_code);
  }
  _exit(exit_code);
}

void timed_out(const std::string& operation) {
  end_job(
      fmt::format("{} did not end within {} s (LOCKSTEP_TIMEOUT); another rank is gone, stopped, or does "
                  "something else",
                  operation, operation_timeout().count()));
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

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::string what;
  std::thread watcher;
};

Deadline::Deadline(std::string what) : state_(std::make_unique<State>()) {
  state_->what = std::move(what);
  state_->watcher = std::thread([state = state_.get()] {
    std::unique_lock lock(state->mutex);
    if (state->changed.wait_for(lock, operation_timeout(), [state] { return state->over; })) return;
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
}

}  // namespace lockstep::comm
