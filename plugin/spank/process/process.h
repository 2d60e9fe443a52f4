// Runs the tools as processes, so that no work, and no crash of it, happens inside Slurm's processes.
//
// A helper starts with PATH and LANG, the three standard descriptors and those of its Command; it cannot gain
// privileges, and it dies with the process that started it. Every user of the machine can read its arguments; its input
// is its user's alone.
//
// Threads: start(), run() and capture() from a process with one thread (a task before exec, srun before it
// launches).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/leaf/descriptors.h"

namespace lockstep::spank {

/// The number of a command's first descriptor in the helper.
inline constexpr int kFirstDescriptor = 3;

/// The helper of this plugin's version, <prefix>/lib/lockstep/VERSION/NAME, where `folder` is <prefix>/bin: while the
/// software is upgraded, slurmstepd and srun still run the version that they have loaded. `folder`/NAME if `folder`
/// has another name, or the version's own is not there: packages replace it.
std::string helper_program(const std::string& folder, const std::string& name);

struct Command {
  std::vector<std::string> arguments;  ///< the program's absolute path first
  std::string input;                   ///< its standard input
  std::vector<int> descriptors;        ///< become 3, 4, ... in the helper
  bool dies_with_parent = true;
  bool own_group = false;  ///< leads a process group, so that its children can be killed with it
};

/// Exit code of a helper that could not be started.
inline constexpr int kCannotStart = 127;

/// How a helper ended.
struct CommandResult {
  int exit_code = 0;    ///< as in a shell: 128 + signal if a signal ended it; or kCannotStart
  std::string output;   ///< capture(): its standard output, 1 MiB at most
  std::string error;    ///< capture(): its standard error
  bool in_time = true;  ///< capture(): false if it was killed because it took too long
};

/// Starts a helper with both outputs on this process's standard error. Throws Error if the program does not exist.
pid_t start(const Command& command);

/// start(), then waits for the helper's end.
CommandResult run(const Command& command);

/// Runs a helper and collects its output. After `timeout` it is killed with all processes that it started.
CommandResult capture(Command command, std::chrono::milliseconds timeout);

/// Runs `work` in a child that becomes uid:gid permanently, without other groups, and waits for it. Returns
/// false, after a line to log(), if the child could not drop its privileges or `work` threw. The user may
/// stop the child, or provide a folder that never responds: after `timeout` the child is killed with all
/// processes that it started, and this returns false.
bool as_user(uid_t uid, gid_t gid, std::chrono::milliseconds timeout, const std::function<void()>& work);

}  // namespace lockstep::spank
