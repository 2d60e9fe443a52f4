#include "runtime/comm/job_end.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "common/error.h"
#include "common/thread.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds kAbortWait{1500};

std::atomic<bool> claimed{false};
std::atomic<void (*)(int)> abort_function{nullptr};

}  // namespace

void set_abort_function(void (*abort)(int exit_code)) {
  abort_function = abort;
}

bool claim_job_end() {
  return !claimed.exchange(true);
}

bool job_end_is_claimed() {
  return claimed;
}

void wait_for_job_end() {
  std::this_thread::sleep_for(std::chrono::seconds(5));
  _exit(1);
}

void print_line(const std::string& line) {
  const std::string whole = fmt::format("lockstep: {}\n", line);
  // One write, so that lines of several ranks do not mix. Not through stderr, whose lock a blocked thread may
  // hold.
  static_cast<void>(!::write(STDERR_FILENO, whole.data(), whole.size()));
}

void leave_job(int exit_code, std::chrono::milliseconds delay, bool others_abort) {
  start_thread([exit_code] {
    std::this_thread::sleep_for(kAbortWait);
    _exit(exit_code);
  }).detach();
  std::fflush(stdout);
  std::this_thread::sleep_for(delay);
  if (const auto abort = abort_function.load()) {
    abort(exit_code);
  } else if (others_abort) {
    std::this_thread::sleep_for(kAbortWait);
  }
  _exit(exit_code);
}

}  // namespace lockstep::comm
