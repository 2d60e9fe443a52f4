// Running the tools as processes, so that no work, and no crash of it, happens inside Slurm's own.
//
// A helper starts with a clean environment, no descriptors but the three standard ones and those it is given,
// no way to gain privileges, and dies with the process that started it.
//
// Threads: start(), run() and capture() from a process with one thread (a task before exec, srun before it
// launches).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::spank {

/// The number that the first of a command's descriptors has in the helper.
inline constexpr int kFirstGiven = 3;

struct Command {
  std::vector<std::string> arguments;    ///< the program's absolute path first
  std::vector<std::string> environment;  ///< NAME=value, beside PATH and LANG
  std::vector<int> descriptors;          ///< become 3, 4, ... in the helper
  bool dies_with_parent = true;
  bool own_group = false;  ///< leads a process group, so that what it starts can be killed with it
};

/// Exit code of a helper that could not be started.
inline constexpr int kCannotStart = 127;

/// How a helper ended.
struct Outcome {
  int exit_code = 0;    ///< as a shell gives it: 128 + signal; or kCannotStart
  std::string output;   ///< capture(): its standard output, 1 MiB at most
  std::string error;    ///< capture(): its standard error
  bool in_time = true;  ///< capture(): false where it was killed for taking too long
};

/// Starts a helper with standard input from /dev/null and both outputs on our standard error. Throws Refusal
/// where the program is not there.
pid_t start(const Command& command);

/// The same, and waits for it.
Outcome run(const Command& command);

/// Runs a helper and collects what it prints. After `patience` it is killed with all that it started.
Outcome capture(Command command, std::chrono::milliseconds patience);

/// Runs `work` in a child that is uid:gid for good, with no other groups, and waits. Returns false where the
/// child could not drop its privileges or `work` threw; it has said why then, through log(). The user may
/// stop the child, or make a folder that never answers: after `patience` it is killed with all that it
/// started, and this returns false.
bool as_user(uid_t uid, gid_t gid, std::chrono::milliseconds patience, const std::function<void()>& work);

}  // namespace lockstep::spank
