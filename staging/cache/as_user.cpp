#include "staging/cache/as_user.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/become_user.h"
#include "common/leaf/pipe.h"
#include "common/leaf/text.h"
#include "common/process.h"

namespace lockstep::cache {
namespace {

using nlohmann::json;

// A user can make a store of any size; its report must not fill root's memory.
constexpr std::size_t kMaxAnswerBytes = std::size_t{16} << 20U;
constexpr std::size_t kMaxErrorBytes = 4096;

[[noreturn]] void run_child(int pipe, uid_t user, gid_t group, const std::function<json()>& work) {
  json answer;
  try {
    become_user(user, group);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must end with its parent, which reads the answer
    ::umask(077);
    answer["result"] = work();
  } catch (const std::exception& error) {
    answer = {{"error", error.what()}};
  }
  try {
    write_all(pipe, answer.dump(-1, ' ', false, json::error_handler_t::replace), "a pipe");
  } catch (const std::exception&) {
    ::_exit(1);
  }
  ::_exit(0);
}

/// Reads everything up to the end. Returns false if that takes too long or is too much.
bool read_answer(int pipe, std::chrono::seconds timeout, std::string& text) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::array<char, 65536> buffer{};
  while (text.size() < kMaxAnswerBytes) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waited{.fd = pipe, .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return false;
}

}  // namespace

json as_user(uid_t user, gid_t group, std::chrono::seconds timeout, const std::function<json()>& work) {
  Pipe pipe;
  const pid_t child = ::fork();
  if (child < 0) fail_errno("cannot start a process for user {}", user);
  if (child == 0) {
    pipe.read_end.reset();
    run_child(pipe.write_end.get(), user, group, work);
  }
  pipe.write_end.reset();
  std::string text;
  const bool whole = read_answer(pipe.read_end.get(), timeout, text);
  if (!whole) {
    end_child(child);  // it may hang in the kernel, on a file system that the user mounted
    fail("no result within {} s: the process was stopped, or the store is very large", timeout.count());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const json answer = json::parse(text, nullptr, false);
  if (WIFSIGNALED(status)) fail("the process for this store was killed by signal {}", WTERMSIG(status));
  if (!answer.is_object())
    fail("the process for this store ended without an answer (exit code {})", WEXITSTATUS(status));
  if (answer.contains("error")) throw Error(printable(answer.at("error").get<std::string>(), kMaxErrorBytes));
  return answer.at("result");
}

}  // namespace lockstep::cache
