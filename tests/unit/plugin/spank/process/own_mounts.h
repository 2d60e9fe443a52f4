// Runs a test's code beside a file system that only it sees.
//
// Threads: a process with one thread.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace lockstep::spank {

/// This container must not mount.
inline constexpr int kNoMounts = 77;

/// Mounts a tmpfs at the folder in a child process, and runs `work` there: 0 if its expectations hold, else 1; or kNoMounts.
inline int in_own_mounts(const std::string& folder, const char* options, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::unshare(CLONE_NEWNS);
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, options) != 0) ::_exit(kNoMounts);
    work();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace lockstep::spank
