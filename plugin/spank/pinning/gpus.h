// The GPUs that Slurm gave to the tasks of a step on a node, so that the plan can put each task next to its
// GPUs.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

namespace lockstep::spank {

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
