// Runs another program and reports how it ended.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/leaf/network.h"

namespace lockstep {

struct ProcessResult {
  int exit_code = 0;   ///< as a shell reports it: 128 + the signal that ended the program
  std::string output;  ///< standard output
  std::string error;   ///< standard error
};

/// Runs a program (looked up in PATH) without a shell and waits for it. It begins with no signal blocked. Throws Error
/// if the program cannot be started.
ProcessResult run_process(const std::vector<std::string>& command);

/// Kills a child that is stuck and waits up to a second for its end. A call that cannot be interrupted delays the
/// end, and the child keeps its locks and connections until then.
void end_child(pid_t child);

/// The name that people use for this node: SLURMD_NODENAME, or else the host name.
std::string node_name();

/// The user's name, or the number if there is no such user.
std::string user_name(uid_t user);

/// "rank 1 on n2": how messages name a rank.
std::string rank_name(int rank, const std::string& node);

}  // namespace lockstep
