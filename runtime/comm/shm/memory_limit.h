// How much memory this process can still take before the kernel ends a process of the job. In a job the limit
// is that of its cgroup (sbatch --mem), which is usually lower than what the node has.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace lockstep::comm::shm {

struct MemoryLimit {
  std::size_t available = 0;  ///< bytes, counting file caches that the kernel gives up
  std::string of;             ///< whose limit it is: "this node", or a cgroup with its limit
};

/// The lowest of the node's memory and the limits of this process's cgroups (v1 and v2). The arguments are for
/// tests.
MemoryLimit available_memory(const std::filesystem::path& proc = "/proc",
                             const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace lockstep::comm::shm
