// Checks of the CPUs of a job's tasks on this node. Threads: safe as long as no thread changes the environment.
#pragma once

#include <optional>
#include <string>

#include "plugin/doctor/finding.h"

namespace lockstep::doctor {

struct Task {
  int number = 0;   ///< on this node, 0…
  int on_node = 1;  ///< tasks on this node
};

/// This process's place among the tasks that srun, mpirun or torchrun started on the node; nullopt if none of
/// them did.
std::optional<Task> this_task();

/// "binding": a task has more than one core if the job has more for it. "threads": the tasks' OpenMP threads
/// fit on the CPUs. `option_prefix` begins the names of the plugin's options.
void check_cpus(const Task& task, const std::string& option_prefix, Report& report);

}  // namespace lockstep::doctor
