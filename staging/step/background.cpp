#include "staging/step/background.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

constexpr int kSignalled = 128;

struct Pipe {
  UniqueFd from, into;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("cannot make a pipe");
    from.reset(ends[0]);
    into.reset(ends[1]);
  }
};

pid_t split() {
  const pid_t child = ::fork();
  if (child < 0) fail_errno("cannot start a process");
  return child;
}

void say_code(int pipe, int exit_code) {
  const auto code = static_cast<unsigned char>(exit_code);
  [[maybe_unused]] const ssize_t put = ::write(pipe, &code, 1);
}

// The calling process: ends as it is told to, or as if killed where nobody is left to tell.
[[noreturn]] void wait_for_word(int pipe) {
  unsigned char code = kSignalled + SIGKILL;
  while (::read(pipe, &code, 1) < 0 && errno == EINTR) {
  }
  ::_exit(code);
}

// Whoever ends the work by the name of its process must not end the one that watches with it.
void take_another_name() {
  constexpr std::string_view kName = "lockstep-watch";
  ::prctl(PR_SET_NAME, kName.data());
  // The words that the process was called with lie in one piece, the program's name first.
  std::size_t length = 0;
  try {
    length = read_text_file("/proc/self/cmdline").size();
  } catch (const Error&) {
    // It watches under the other name.
  }
  if (length <= kName.size()) return;
  std::memset(::program_invocation_name, 0, length);
  std::memcpy(::program_invocation_name, kName.data(), kName.size());
}

// Hands the word that lets the caller end on to it. False where the work ended without one.
bool hand_on(int from_work, int to_caller, pid_t work) {
  for (;;) {
    std::array<pollfd, 2> wait{pollfd{from_work, POLLIN, 0}, pollfd{to_caller, 0, 0}};
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    unsigned char code = 0;
    if (wait[0].revents != 0) {
      if (::read(from_work, &code, 1) != 1) return false;
      say_code(to_caller, code);
      return true;
    }
    ::kill(work, SIGKILL);  // POLLERR: the caller has ended
    return false;
  }
}

// The process that watches: ends after the work, and tells how that ended where it cannot tell itself.
[[noreturn]] void watch_over(pid_t work, int from_work, UniqueFd to_caller, int alive,
                             const std::function<void(int signal)>& killed) {
  take_another_name();
  const bool released = hand_on(from_work, to_caller.get(), work);
  int status = 0;
  while (::waitpid(work, &status, 0) < 0 && errno == EINTR) {
  }
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  const int code = signal > 0 ? kSignalled + signal : WEXITSTATUS(status);
  if (!released) say_code(to_caller.get(), code);
  to_caller.reset();
  // Where the step has ended too, it is the step that was killed.
  constexpr int kForTheStep = 200;  // milliseconds
  pollfd wait{alive, POLLIN, 0};
  if (released && signal > 0 && ::poll(&wait, 1, kForTheStep) == 0) {
    // The source, or a lock, may not answer for longer than the step lasts.
    std::thread([wait, code]() mutable {
      while (::poll(&wait, 1, -1) < 0) {
      }
      ::_exit(code);
    }).detach();
    killed(signal);
  }
  ::_exit(code);
}

}  // namespace

Background::Background(UniqueFd pipe, UniqueFd alive) : pipe_(std::move(pipe)), alive_(std::move(alive)) {
}

Background& Background::start(UniqueFd alive, const std::function<void(int signal)>& killed) {
  Pipe to_caller;
  if (split() > 0) {
    to_caller.into.reset();
    wait_for_word(to_caller.from.get());
  }
  to_caller.from.reset();
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
  Pipe from_work;
  const pid_t work = split();
  if (work > 0) {
    from_work.into.reset();
    watch_over(work, from_work.from.get(), std::move(to_caller.into), alive.get(), killed);
  }
  to_caller.into.reset();
  from_work.from.reset();
  // Lives as long as the process, which may end from within it.
  static Background* const the = new Background(std::move(from_work.into), std::move(alive));
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
  released_ = true;
  say_code(pipe_.get(), exit_code);
  pipe_.reset();
}

}  // namespace lockstep::transfer
