// Pinning the tasks of a step: asks lockstep-pin once per node, then binds each task.
//
// Threads: a task's process before exec; it has one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/leaf/options/config.h"
#include "common/leaf/options/options.h"
#include "plugin/spank/process/node_tasks.h"

namespace lockstep::spank {

/// What Slurm granted to the step on the node.
struct Grant {
  std::size_t tasks = 0;
  std::string cpus;       ///< of all tasks together
  int cpus_per_task = 0;  ///< the value of --cpus-per-task; 0: not given
  std::string gpus;       ///< the GPUs to distribute to the tasks, or ""
};

/// Runs lockstep-pin for the node's tasks within what Slurm gave them, and stores the placements in `tasks`.
/// `cpus_per_task` is as in Grant. Throws Error with the reason if the tasks must keep their CPUs.
void plan_node(NodeTasks& tasks, const Config& config, const PinRequest& pin, const std::string& node,
               int cpus_per_task);

/// The command line of lockstep-pin.
std::vector<std::string> plan_arguments(const Config& config, const PinRequest& pin, const Grant& granted);

/// Reads the output of `lockstep-pin plan --plain`: "TASK CPUS WORKER_CPUS NUMA THREADS GPUS PLACES" per
/// task, "-" for none; older versions lack the last fields. Throws Error if it is not a plan for tasks 0
/// to `tasks` - 1.
std::vector<TaskPlacement> parse_plan(const std::string& text, std::size_t tasks);

/// Binds the calling process to its compute and worker CPUs together. Throws Error if the kernel refuses.
void bind(const TaskPlacement& placement);

/// Names of the OMP_ variables that the plugin has set for an outer task, whose variables are inherited. One
/// that the user has changed since is not among them. `variable` returns the value of a variable, or "".
std::vector<const char*> outer_openmp_variables(const std::function<std::string(const char*)>& variable);

/// A task's GPUs as the node numbers them, in the task's order. `visible` is the task's CUDA_VISIBLE_DEVICES
/// (or another vendor's variable). Its numbers count within the step's GPUs if Slurm confines devices, and
/// otherwise within the node's GPUs. `of_step` is SLURM_STEP_GPUS, in the node's numbers. Returns none if the
/// variables do not show the GPUs.
std::vector<std::string> gpus_of_task(const std::string& visible, const std::string& of_step);

/// The list for `lockstep-pin --gpus`, which distributes it to the tasks in equal blocks. If all tasks see
/// the same GPUs, it is the list of any task; if each task has equally many GPUs that no other task has,
/// it is all lists, one after the other; otherwise "".
std::string list_for_plan(const std::vector<std::vector<std::string>>& of_tasks);

/// The PCI address of /dev/nvidiaNUMBER, as the driver lists it below `listed`; NUMBER itself if the
/// driver does not list it.
std::string pci_address(const std::string& number, const std::string& listed = "/proc/driver/nvidia/gpus");

/// Splits "a,b" at the commas; "" has no items.
std::vector<std::string> split_list(const std::string& text);

}  // namespace lockstep::spank
