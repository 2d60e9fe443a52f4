// Which GPUs Slurm gave to the tasks of a step on a node, so that the plan can put each task next to its own.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

namespace lockstep::spank {

/// The node's numbers of a task's GPUs, in its order. `visible` is the task's CUDA_VISIBLE_DEVICES (or that
/// of another maker), which counts within the step's GPUs where Slurm confines devices and within the node's
/// where it does not; `of_step` is SLURM_STEP_GPUS, in the node's numbers. None where that cannot be told.
std::vector<std::string> gpus_of_task(const std::string& visible, const std::string& of_step);

/// The list for `lockstep-pin --gpus`, which deals it to the tasks in equal blocks: that of any task where
/// all see the same GPUs, all tasks' in turn where each has as many of its own, "" otherwise.
std::string list_for_plan(const std::vector<std::vector<std::string>>& of_tasks);

/// The PCI address of the GPU that is /dev/nvidiaNUMBER, as the driver lists it below `listed`; the number
/// itself where it does not.
std::string pci_address(const std::string& number, const std::string& listed = "/proc/driver/nvidia/gpus");

/// "a,b" in its parts; "" has none.
std::vector<std::string> split_list(const std::string& text);
std::string join_list(const std::vector<std::string>& items);

}  // namespace lockstep::spank
