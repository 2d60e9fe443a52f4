#include "common/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/descriptors.h"

namespace lockstep {

ProcessResult run_process(const std::vector<std::string>& command) {
  Pipe output;
  Pipe error;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output.write_end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.write_end.get(), STDERR_FILENO);
  // The program must end by signals that this process has blocked.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int failed = ::posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) fail("cannot run {}: {}", command.front(), errno_text(failed));
  output.write_end.reset();
  error.write_end.reset();

  ProcessResult result;
  while (output.read_end || error.read_end) {
    // poll() skips negative descriptors, so a closed end needs no special case.
    std::array<pollfd, 2> wait{pollfd{output.read_end.get(), POLLIN, 0},
                               pollfd{error.read_end.get(), POLLIN, 0}};
    if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR)
      fail_errno("cannot wait for {}", command.front());
    if (wait[0].revents != 0) drain(output.read_end, result.output);
    if (wait[1].revents != 0) drain(error.read_end, result.error);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

void end_child(pid_t child) {
  ::kill(child, SIGKILL);
  constexpr std::chrono::milliseconds kStep(10);
  for (std::chrono::milliseconds waited{}; waited < std::chrono::seconds(1); waited += kStep) {
    if (::waitpid(child, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(kStep);
  }
}

std::string node_name() {
  return environment::get("SLURMD_NODENAME").value_or(host_name());
}

std::string user_name(uid_t user) {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return std::to_string(user);
  return found->pw_name;
}

std::string rank_name(int rank, const std::string& node) {
  return fmt::format("rank {} on {}", rank, node);
}

}  // namespace lockstep
