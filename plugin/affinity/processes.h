// The CPU masks, NUMA memory and memory policies of running processes, from /proc.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::affinity {

/// The threads of a process that have the same mask.
struct ThreadGroup {
  std::string mask;       ///< CPU list
  std::vector<int> last;  ///< CPUs they last ran on, ascending
  int threads = 0;
};

struct ProcessView {
  pid_t pid = 0;
  std::string command;
  std::vector<ThreadGroup> groups;  ///< by mask
  std::map<int, std::uint64_t>
      node_bytes;  ///< memory of each NUMA node; empty if the kernel does not provide it
  /// The memory under each memory policy, in the kernel's words ("default", "interleave:0-1", "bind:0"). Memory that was
  /// mapped before the process set a policy counts under the new one, though its pages stay. Empty as above.
  std::map<std::string, std::uint64_t> policy_bytes;
};

/// Throws Error naming the process if it does not exist or may not be read.
ProcessView view_process(pid_t pid);

}  // namespace lockstep::affinity
