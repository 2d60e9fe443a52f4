#include "staging/step/background.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/thread.h"

namespace lockstep::transfer {
namespace {

constexpr int kSignalled = 128;

void send_code(const UniqueFd& pipe, int exit_code) {
  const auto code = static_cast<unsigned char>(exit_code);
  [[maybe_unused]] const ssize_t put = ::write(pipe.get(), &code, 1);
}

// Ends the calling process with the code that the supervisor sends; without a code, as if it were killed.
[[noreturn]] void end_with_code_from(const UniqueFd& pipe) {
  unsigned char code = kSignalled + SIGKILL;
  while (::read(pipe.get(), &code, 1) < 0 && errno == EINTR) {
  }
  ::_exit(code);
}

bool is_readable(const UniqueFd& fd, int wait_ms) {
  pollfd wait{fd.get(), POLLIN, 0};
  return ::poll(&wait, 1, wait_ms) > 0;
}

}  // namespace

Background::Background(UniqueFd to_caller, UniqueFd released, UniqueFd alive)
    : to_caller_(std::move(to_caller)), released_(std::move(released)), alive_(std::move(alive)) {
}

Background& Background::start(UniqueFd alive) {
  Pipe to_caller;
  UniqueFd released(::eventfd(0, EFD_CLOEXEC));
  if (!released) fail_errno("cannot make an eventfd");
  const pid_t supervisor = ::fork();
  if (supervisor < 0) fail_errno("cannot start a process");
  if (supervisor > 0) {
    to_caller.write_end.reset();
    end_with_code_from(to_caller.read_end);
  }
  ::setsid();
  // Lowers the priority, because the step computes at the same time. The child inherits it.
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, 0, kNice);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (nothing) {
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(nothing.get(), STDOUT_FILENO);
  }
  // Never destroyed, because the thread of watch() uses it until the process ends.
  static Background* const instance =
      new Background(std::move(to_caller.write_end), std::move(released), std::move(alive));
  return *instance;
}

void Background::end_with_step() {
  new_thread([this] { watch(); }).detach();
}

void Background::watch() {
  for (;;) {
    std::array<pollfd, 2> wait{pollfd{alive_.get(), POLLIN, 0}, pollfd{-1, 0, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (!released()) wait[1] = {to_caller_.get(), 0, 0};  // POLLERR tells that the caller has ended
    }
    constexpr int kLookAgain = 200;  // milliseconds, until released
    const int ready = ::poll(wait.data(), wait.size(), wait[1].fd >= 0 ? kLookAgain : -1);
    if (ready <= 0) continue;
    // The incomplete copy stays, and the next call continues it.
    if (wait[0].revents != 0) ::_exit(0);
    const std::lock_guard lock(mutex_);
    if (wait[1].revents != 0 && !released()) ::_exit(1);
  }
}

void Background::release(int exit_code) {
  const std::lock_guard lock(mutex_);
  ::eventfd_write(released_.get(), 1);
  send_code(to_caller_, exit_code);
  to_caller_.reset();
}

bool Background::released() const {
  return is_readable(released_, 0);
}

bool Background::step_runs() const {
  constexpr int kWait = 200;  // milliseconds
  return !is_readable(alive_, kWait);
}

void Background::end(int exit_code) {
  if (!released()) send_code(to_caller_, exit_code);
  ::_exit(exit_code);
}

}  // namespace lockstep::transfer
