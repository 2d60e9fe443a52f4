// Pinning the tasks of a step: asking lockstep-pin once per node, then binding each task and telling its
// program.
//
// Threads: a task's process before exec; it has one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plugin/spank/config.h"
#include "plugin/spank/node_tasks.h"
#include "plugin/spank/options.h"

namespace lockstep::spank {

/// What Slurm granted to the step on the node.
struct Granted {
  std::size_t tasks = 0;
  std::string cpus;       ///< of all tasks together
  int cpus_per_task = 0;  ///< as --cpus-per-task asked; 0: it did not
  std::string gpus;       ///< to be dealt to the tasks, or ""
};

/// Runs lockstep-pin for the node's tasks within what Slurm gave them, and leaves the places in `tasks`.
/// `cpus_per_task` is what the job asked for, 0 where it did not. Throws Refusal with the reason where the
/// tasks have to be left alone.
void plan_node(NodeTasks& tasks, const Config& config, const PinRequest& pin, const std::string& node,
               int cpus_per_task);

/// What lockstep-pin is called with.
std::vector<std::string> plan_arguments(const Config& config, const PinRequest& pin, const Granted& granted);

/// Reads what `lockstep-pin plan --plain` prints: "TASK CPUS WORKER_CPUS NUMA THREADS GPUS" per task, "-" for
/// none. Throws Refusal where it is not that for tasks 0 to `tasks` - 1.
std::vector<Placement> parse_plan(const std::string& text, std::size_t tasks);

/// Binds the calling process to its compute and worker CPUs together. Throws Refusal where the kernel
/// refuses.
void bind(const Placement& placement);

/// Takes the calling process's memory from the placement's NUMA nodes in turn. Throws Refusal likewise.
void interleave_memory(const Placement& placement);

/// OMP_PLACES for compute CPUs: a place per core, with those hardware threads of it that are in the list.
/// `siblings` gives the list of a CPU's core ("0,48").
std::string openmp_places(const std::string& cpus, const std::function<std::string(int)>& siblings);

/// The list of the core that a CPU of this machine belongs to.
std::string siblings_here(int cpu);

}  // namespace lockstep::spank
