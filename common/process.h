// Running another program and knowing how it ended.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ProcessResult {
  int exit_code = 0;   ///< as a shell gives it: 128 + signal where a signal ended it
  std::string output;  ///< standard output
  std::string error;   ///< standard error
};

/// Runs a program (looked up in PATH) without a shell and waits for it. Throws Error when it cannot be
/// started.
ProcessResult run_process(const std::vector<std::string>& command);

/// This machine's host name, up to the first dot: the node name where Slurm gives none.
std::string host_name();

/// This node as people know it: SLURMD_NODENAME, or the host name.
std::string node_name();

}  // namespace lockstep
