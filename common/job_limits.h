// The memory and the CPUs that this process may use. In a job the limits are those of its cgroups (sbatch --mem,
// --cpus-per-task), which are usually lower than what the node has. Both versions of cgroups are read.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

/// The memory that is left before the kernel ends a process of the job.
struct MemoryLimit {
  std::size_t available = 0;  ///< bytes, counting file caches that the kernel gives up
  std::string of;             ///< whose limit it is: "this node", or a cgroup with its limit
};

/// The lowest of the node's memory and the limits of this process's cgroups. The arguments are for tests.
MemoryLimit available_memory(const std::filesystem::path& proc = "/proc",
                             const std::filesystem::path& cgroups = "/sys/fs/cgroup");

/// The totals that the process may use, together with the other processes of its cgroup.
struct JobLimits {
  std::uint64_t memory_bytes = 0;  ///< the lowest limit; without cgroups the node's memory; 0: unknown
  std::uint64_t memory_group = 0;  ///< tells the cgroup of that limit from others of the node; 0: the node
  double cpus = 0;                 ///< processor time per time (cpu.max); 0: not limited
};

JobLimits job_limits(const std::filesystem::path& proc = "/proc",
                     const std::filesystem::path& cgroups = "/sys/fs/cgroup");

/// The cgroup, of this process or above it, that allows no further process or thread, with its limit; "" for none.
std::string full_process_group(const std::filesystem::path& proc = "/proc",
                               const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace lockstep
