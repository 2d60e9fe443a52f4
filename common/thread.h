// Starts threads. If the system starts none, the error names the limit.
//
// Threads: safe from any.
#pragma once

#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

namespace lockstep {

/// Throws SystemError for a thread that could not be started, with the limit that this process has reached and what to do.
/// The other arguments are for tests.
[[noreturn]] void fail_thread(int error, const std::filesystem::path& proc = "/proc",
                              const std::filesystem::path& cgroups = "/sys/fs/cgroup");

/// Makes a std::thread or a std::jthread. Throws as fail_thread() does.
template <typename Thread = std::thread, typename Body>
Thread new_thread(Body&& body) {
  try {
    return Thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    fail_thread(error.code().value());
  }
}

/// Starts a thread in the user's program. It gets no signals, since the program may wait for signals in one of its own
/// threads (sigwait, for Slurm's --signal). Throws as fail_thread() does.
template <typename Body>
std::thread start_thread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [&before] { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  try {
    std::thread thread = new_thread(std::move(body));
    restore();
    return thread;
  } catch (...) {
    restore();
    throw;
  }
}

}  // namespace lockstep
