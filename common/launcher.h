// This process's place in its job, and the CPUs of threads that work beside training (the loader's, the planner's, the writer's
// of checkpoints), from the environment variables of its launcher: mpirun, srun or torchrun. A thread inherits the mask of the
// one that starts it, which OpenMP may have bound to a single CPU.
//
// Threads: safe as long as no thread changes the environment; use_background_cpus() changes the mask of the calling thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// The rank of a process that mpirun, or srun with PMIx or PMI, has started: MPI finds the others. Throws UsageError naming
/// a variable that is not a number.
std::optional<int> mpi_rank();

/// For a process without mpi_rank(). Throws UsageError if it is one of several tasks of srun: each would believe that it is
/// the only rank. Prints a line if it is in a job of several ranks, but alone.
void check_that_alone();

struct LocalRank {
  int rank = 0;  ///< 0…
  int size =
      1;  ///< tasks on this node that share its CPUs; if Slurm has bound them, those with this task's mask
  bool bound_by_launcher =
      false;        ///< the CPU mask is the launcher's default for one rank, not the job's share
  int number = 0;   ///< among all tasks of this node, 0…
  int on_node = 1;  ///< tasks on this node
};

/// nullopt if no known launcher started this process. Throws UsageError naming an invalid variable.
std::optional<LocalRank> find_local_rank();

/// The entry for node `node` of Slurm's list of task counts, "2(x3),1". Throws UsageError naming the text.
int tasks_on_node(const std::string& counts, long node);

/// LOCKSTEP_WORKER_CPUS; empty if there are none.
std::vector<int> worker_cpus();

/// The worker CPUs, else LOCKSTEP_CPUS; empty if neither is set.
std::vector<int> background_cpus();

/// Binds the calling thread to background_cpus(), if there are any. It stays where it is if the kernel refuses,
/// which World reports at the start.
void use_background_cpus() noexcept;

}  // namespace lockstep
