#include "staging/step/background.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

// The calling process: ends as the other tells it to.
[[noreturn]] void wait_for_word(int pipe, pid_t child) {
  unsigned char code = 1;
  while (::read(pipe, &code, 1) < 0 && errno == EINTR) {
  }
  int status = 0;
  if (::waitpid(child, &status, WNOHANG) == child && WIFEXITED(status) && WEXITSTATUS(status) != 0) code = 1;
  ::_exit(code);
}

}  // namespace

Background::Background(UniqueFd pipe, UniqueFd alive) : pipe_(std::move(pipe)), alive_(std::move(alive)) {
}

Background& Background::start(UniqueFd alive) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("cannot make a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) fail_errno("cannot start a process");
  if (child > 0) {
    write_end.reset();
    wait_for_word(read_end.get(), child);
  }
  read_end.reset();
  ::setsid();
  // The step computes meanwhile; all threads that are started from here on inherit it.
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, 0, kNice);
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (nothing) {
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(nothing.get(), STDOUT_FILENO);
  }
  // Lives as long as the process, which may end from within it.
  static Background* const the = new Background(std::move(write_end), std::move(alive));
  std::thread([] { the->watch(); }).detach();
  return *the;
}

void Background::watch() {
  for (;;) {
    std::array<pollfd, 2> wait{pollfd{alive_.get(), POLLIN, 0}, pollfd{-1, 0, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (!released_) wait[1] = {pipe_.get(), 0, 0};  // POLLERR: nobody reads any more
    }
    constexpr int kLookAgain = 200;  // milliseconds, until released
    const int ready = ::poll(wait.data(), wait.size(), wait[1].fd >= 0 ? kLookAgain : -1);
    if (ready <= 0) continue;
    // What is half copied stays, and the next call goes on from there.
    if (wait[0].revents != 0) ::_exit(0);
    const std::lock_guard lock(mutex_);
    if (wait[1].revents != 0 && !released_) ::_exit(1);
  }
}

void Background::release(int exit_code) {
  const std::lock_guard lock(mutex_);
  const auto code = static_cast<unsigned char>(exit_code);
  released_ = true;
  [[maybe_unused]] const ssize_t put = ::write(pipe_.get(), &code, 1);
  pipe_.reset();
}

}  // namespace lockstep::transfer
