#include "plugin/spank/process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <limits>
#include <utility>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

constexpr std::size_t kMaxOutput = 1U << 20U;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  list.reserve(texts.size() + 1);
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

void default_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Moves the given descriptors to 3, 4, ... through numbers above all of them, so that none is overwritten.
bool place(const std::vector<int>& given) {
  const int count = static_cast<int>(given.size());
  std::array<int, 8> high{};
  if (given.size() > high.size()) return false;
  for (int i = 0; i < count; ++i) {
    high[static_cast<std::size_t>(i)] =
        ::fcntl(given[static_cast<std::size_t>(i)], F_DUPFD, kFirstGiven + count);
    if (high[static_cast<std::size_t>(i)] < 0) return false;
  }
  for (int i = 0; i < count; ++i) {
    if (::dup2(high[static_cast<std::size_t>(i)], kFirstGiven + i) < 0) return false;
  }
  return ::close_range(static_cast<unsigned>(kFirstGiven + count), ~0U, 0) == 0;
}

// In the child, between fork and exec: system calls only.
[[noreturn]] void become(const Command& command, char** arguments, char** environment, int output, int error,
                         pid_t parent) {
  default_signals();
  if (command.own_group) ::setpgid(0, 0);
  if (command.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kCannotStart);
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const int nothing = ::open("/dev/null", O_RDWR);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(output, STDOUT_FILENO) < 0 ||
      ::dup2(error, STDERR_FILENO) < 0 || !place(command.descriptors)) {
    ::_exit(kCannotStart);
  }
  ::execve(arguments[0], arguments, environment);
  ::_exit(kCannotStart);
}

pid_t spawn(const Command& command, int output, int error) {
  if (::access(command.arguments.front().c_str(), X_OK) != 0) {
    throw Refusal("cannot run " + command.arguments.front() + ": " + errno_text(errno) +
                  "; 'helpers' in lockstep.conf names the folder of the tools");
  }
  std::vector<std::string> variables{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"};
  variables.insert(variables.end(), command.environment.begin(), command.environment.end());
  const std::vector<char*> arguments = pointers(command.arguments);
  const std::vector<char*> environment = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become(command, const_cast<char**>(arguments.data()), const_cast<char**>(environment.data()), output,
           error, parent);
  }
  if (child < 0) throw Refusal("cannot start a process: " + errno_text(errno));
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return kCannotStart;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Refusal("cannot make a pipe: " + errno_text(errno));
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(std::size_t end) {
    if (ends.at(end) >= 0) ::close(std::exchange(ends.at(end), -1));
  }
};

using Clock = std::chrono::steady_clock;

// 0 where that has passed.
int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

// False where it takes longer than that. The other end of `pipe` is held by the child, and by nobody else who
// may outlive it; -1: there is none.
bool ends_before(pid_t child, int pipe, Clock::time_point end) {
  for (;;) {
    siginfo_t about{};
    if (::waitid(P_PID, static_cast<id_t>(child), &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        about.si_pid == child) {
      return true;
    }
    const int left = milliseconds_until(end);
    if (left == 0) return false;
    pollfd wait{pipe, POLLIN, 0};
    // At its end a process closes its files a moment before it can be waited for.
    if (pipe < 0 || ::poll(&wait, 1, left) > 0) ::poll(nullptr, 0, 1);
  }
}

// The child and what it has started.
void kill_group(pid_t child) {
  ::kill(child, SIGKILL);
  ::kill(-child, SIGKILL);
}

void drain(Pipe& pipe, std::string& into) {
  std::array<char, 4096> buffer{};
  const ssize_t got = ::read(pipe.ends[0], buffer.data(), buffer.size());
  if (got <= 0) {
    if (got == 0 || errno != EINTR) pipe.close(0);
  } else if (into.size() < kMaxOutput) {
    into.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

pid_t start(const Command& command) {
  return spawn(command, STDERR_FILENO, STDERR_FILENO);
}

Outcome run(const Command& command) {
  return {wait_for(start(command)), {}, {}};
}

Outcome capture(Command command, std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  Pipe output;
  Pipe error;
  command.own_group = true;
  const pid_t child = spawn(command, output.ends[1], error.ends[1]);
  ::setpgid(child, child);  // whoever of the two comes first
  output.close(1);
  error.close(1);
  Outcome outcome;
  while (outcome.in_time && (output.ends[0] >= 0 || error.ends[0] >= 0)) {
    std::array<pollfd, 2> wait{pollfd{output.ends[0], POLLIN, 0}, pollfd{error.ends[0], POLLIN, 0}};
    const int ready = ::poll(wait.data(), wait.size(), milliseconds_until(end));
    if (ready < 0 && errno != EINTR) break;
    outcome.in_time = ready > 0 || milliseconds_until(end) > 0;
    if (ready <= 0) continue;
    if (wait[0].revents != 0) drain(output, outcome.output);
    if (wait[1].revents != 0) drain(error, outcome.error);
  }
  outcome.in_time = outcome.in_time && ends_before(child, -1, end);
  if (!outcome.in_time) kill_group(child);
  outcome.exit_code = wait_for(child);
  return outcome;
}

bool as_user(uid_t uid, gid_t gid, std::chrono::milliseconds patience, const std::function<void()>& work) {
  // Nobody writes to it: it ends when the child has.
  Pipe life;
  const pid_t child = ::fork();
  if (child < 0) {
    log("cannot start a process: " + errno_text(errno));
    return false;
  }
  if (child == 0) {
    // A group of its own, whose number nobody else gets while the child has not been waited for.
    ::setpgid(0, 0);
    // All three ids and the groups: a child that keeps a saved id could take root back.
    if (::setgroups(1, &gid) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0) {
      log("cannot become user " + std::to_string(uid) + ": " + errno_text(errno));
      ::_exit(1);
    }
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    try {
      work();
    } catch (const std::exception& error) {
      log(error.what());
      ::_exit(1);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::setpgid(child, child);  // whoever of the two comes first
  life.close(1);
  const bool in_time = ends_before(child, life.ends[0], Clock::now() + patience);
  if (!in_time) {
    log("a process of user " + std::to_string(uid) + " did not end in " + std::to_string(patience.count()) +
        " ms and is killed; what is left, lockstep-stage gc removes");
    kill_group(child);
  }
  return wait_for(child) == 0 && in_time;
}

}  // namespace lockstep::spank
