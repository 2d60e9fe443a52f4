// What runs where now: the CPU masks and NUMA memory of processes, from /proc.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::affinity {

/// Threads of one process that have the same mask.
struct ThreadGroup {
  std::string mask;       ///< CPU list
  std::vector<int> last;  ///< CPUs they last ran on, ascending
  int threads = 0;
};

struct ProcessView {
  pid_t pid = 0;
  std::string command;
  std::vector<ThreadGroup> groups;          ///< by mask
  std::map<int, std::uint64_t> node_bytes;  ///< memory by NUMA node; empty where the kernel does not tell
};

/// Throws Error naming the process when it is not there.
ProcessView view_process(pid_t pid);

/// All processes of this user but this one, by process id.
std::vector<ProcessView> view_own_processes();

}  // namespace lockstep::affinity
