#include "plugin/spank/process/process.h"

#include <fcntl.h>
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
#include <string_view>

#include "common/leaf/become_user.h"
#include "common/leaf/descriptors.h"
#include "plugin/spank/process/report.h"

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

// Moves the descriptors to 3, 4, ... through numbers above all of them, so that none is overwritten.
bool renumber(const std::vector<int>& descriptors) {
  const int count = static_cast<int>(descriptors.size());
  std::array<int, 8> high{};
  if (descriptors.size() > high.size()) return false;
  for (int i = 0; i < count; ++i) {
    high[static_cast<std::size_t>(i)] =
        ::fcntl(descriptors[static_cast<std::size_t>(i)], F_DUPFD, kFirstDescriptor + count);
    if (high[static_cast<std::size_t>(i)] < 0) return false;
  }
  for (int i = 0; i < count; ++i) {
    if (::dup2(high[static_cast<std::size_t>(i)], kFirstDescriptor + i) < 0) return false;
  }
  return ::close_range(static_cast<unsigned>(kFirstDescriptor + count), ~0U, 0) == 0;
}

// In the child, between fork and exec: system calls only.
[[noreturn]] void become(const Command& command, char** arguments, char** environment, int input, int output,
                         int error, pid_t parent) {
  default_signals();
  if (command.own_group) ::setpgid(0, 0);
  if (command.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kCannotStart);
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::dup2(input, STDIN_FILENO) < 0 || ::dup2(output, STDOUT_FILENO) < 0 ||
      ::dup2(error, STDERR_FILENO) < 0 || !renumber(command.descriptors)) {
    ::_exit(kCannotStart);
  }
  ::execve(arguments[0], arguments, environment);
  ::_exit(kCannotStart);
}

// In memory, because a pipe would hold only a part until the helper reads it.
UniqueFd file_of(const std::string& input) {
  UniqueFd file = make_memory_file("input");
  if (!file) throw Error("cannot make the input of a process: " + errno_text(errno));
  for (std::size_t done = 0; done < input.size();) {
    const ssize_t put = ::write(file.get(), input.data() + done, input.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw Error("cannot write the input of a process: " + errno_text(errno));
    done += static_cast<std::size_t>(put);
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

pid_t spawn(const Command& command, int output, int error) {
  if (::access(command.arguments.front().c_str(), X_OK) != 0) {
    throw Error(
        "cannot run " + command.arguments.front() + ": " + errno_text(errno) +
        ": set 'helpers' in lockstep.conf to the folder of the tools, and name lockstep.so before plugins that give tasks another root (pyxis) in plugstack.conf");
  }
  const std::vector<std::string> variables{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"};
  const std::vector<char*> arguments = pointers(command.arguments);
  const std::vector<char*> environment = pointers(variables);
  const UniqueFd input =
      command.input.empty() ? UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)) : file_of(command.input);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become(command, const_cast<char**>(arguments.data()), const_cast<char**>(environment.data()), input.get(),
           output, error, parent);
  }
  if (child < 0) throw Error("cannot start a process: " + errno_text(errno));
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return kCannotStart;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

using Clock = std::chrono::steady_clock;

// 0 if `end` has passed.
int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

// False if the child still runs at `end`. Only the child, and no process that may outlive it, holds the write end of
// `pipe`; -1: there is no pipe.
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
    // An ending process closes its files a moment before waitid() sees its end.
    if (pipe < 0 || ::poll(&wait, 1, left) > 0) ::poll(nullptr, 0, 1);
  }
}

// Kills the child and the processes that it has started. Waits up to a second, because a process that hangs in the
// kernel cannot be killed.
void kill_group(pid_t child) {
  ::kill(child, SIGKILL);
  ::kill(-child, SIGKILL);
  if (ends_before(child, -1, Clock::now() + std::chrono::seconds(1))) wait_for(child);
}

}  // namespace

std::string helper_program(const std::string& folder, const std::string& name) {
  constexpr std::string_view kBin = "/bin";
  const std::string path = folder.substr(0, folder.find_last_not_of('/') + 1);
  if (!path.ends_with(kBin)) return folder + "/" + name;
  const std::string prefix = path.substr(0, path.size() - kBin.size());
  const std::string own = prefix + "/lib/lockstep/" LOCKSTEP_VERSION "/" + name;
  return ::access(own.c_str(), X_OK) == 0 ? own : folder + "/" + name;
}

pid_t start(const Command& command) {
  return spawn(command, STDERR_FILENO, STDERR_FILENO);
}

CommandResult run(const Command& command) {
  return {wait_for(start(command)), {}, {}};
}

CommandResult capture(Command command, std::chrono::milliseconds timeout) {
  const Clock::time_point end = Clock::now() + timeout;
  Pipe output;
  Pipe error;
  command.own_group = true;
  const pid_t child = spawn(command, output.write_end.get(), error.write_end.get());
  ::setpgid(child, child);  // parent and child both call this, because either may run first
  output.write_end.reset();
  error.write_end.reset();
  CommandResult result;
  while (result.in_time && (output.read_end || error.read_end)) {
    std::array<pollfd, 2> wait{pollfd{output.read_end.get(), POLLIN, 0},
                               pollfd{error.read_end.get(), POLLIN, 0}};
    const int ready = ::poll(wait.data(), wait.size(), milliseconds_until(end));
    if (ready < 0 && errno != EINTR) break;
    result.in_time = ready > 0 || milliseconds_until(end) > 0;
    if (ready <= 0) continue;
    if (wait[0].revents != 0) drain(output.read_end, result.output, kMaxOutput);
    if (wait[1].revents != 0) drain(error.read_end, result.error, kMaxOutput);
  }
  result.in_time = result.in_time && ends_before(child, -1, end);
  if (result.in_time) {
    result.exit_code = wait_for(child);
  } else {
    kill_group(child);
    result.exit_code = 128 + SIGKILL;
  }
  return result;
}

bool as_user(uid_t uid, gid_t gid, std::chrono::milliseconds timeout, const std::function<void()>& work) {
  Pipe life;  // never written to: its read end sees the child's end
  const pid_t child = ::fork();
  if (child < 0) {
    log("cannot start a process: " + errno_text(errno));
    return false;
  }
  if (child == 0) {
    // No other process gets the group's number before wait_for().
    ::setpgid(0, 0);
    try {
      become_user(uid, gid);
      work();
    } catch (const std::exception& error) {
      log(error.what());
      ::_exit(1);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::setpgid(child, child);
  life.write_end.reset();
  const bool in_time = ends_before(child, life.read_end.get(), Clock::now() + timeout);
  if (!in_time) {
    log("a process of user " + std::to_string(uid) + " did not end in " + std::to_string(timeout.count()) +
        " ms and is killed: lockstep-stage gc removes what it leaves");
    kill_group(child);
    return false;
  }
  return wait_for(child) == 0;
}

}  // namespace lockstep::spank
