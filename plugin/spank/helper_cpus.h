// Which CPUs the staging helper runs on. While tasks wait for it, all that the step has on the node; while
// they run, those that no task was given, where the step leaves any.
//
// Threads: step_cpus() from a process with one thread; the others from any.
#pragma once

#include <sched.h>

#include <cstdint>
#include <optional>

#include "plugin/spank/node_tasks.h"

namespace lockstep::spank {

/// What a task's process may run on beside the CPUs it was bound to: the step's, as its control group has
/// them. Nothing where no control group confines the step, which was given `granted` CPUs of the node: then
/// nobody can say which are its own.
std::optional<cpu_set_t> step_cpus(std::uint32_t granted);

/// Of the step's CPUs those that no task was given; with none left, those on which tasks do not compute; with
/// none of these either, all. `all_masks` is the union of the tasks' CPUs, `computing` of those for compute.
cpu_set_t spare_cpus(const cpu_set_t& step, const cpu_set_t& all_masks, const cpu_set_t& computing);

}  // namespace lockstep::spank
