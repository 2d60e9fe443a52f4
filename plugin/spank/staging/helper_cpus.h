// The CPUs that the staging helper runs on. While the tasks wait for it, these are all CPUs that the step has
// on the node; while the tasks run, those that no task was given, if there are any.
//
// Threads: step_cpus() from a process with one thread; spare_cpus() from any.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::spank {

/// The step's CPUs, also those that the calling task is not bound to, as the control group has them. None
/// where no control group confines a step that was given only part of the node (`granted` CPUs): then nobody
/// can say which CPUs are the step's.
std::vector<int> step_cpus(std::uint32_t granted);

/// Of the step's CPUs (ascending) those that no task was given; if none are left, those on which no task
/// computes; if there are none of these either, all. `of_tasks` are the CPUs of all tasks, `computing` those
/// for compute.
std::vector<int> spare_cpus(const std::vector<int>& step, const std::vector<int>& of_tasks,
                            const std::vector<int>& computing);

}  // namespace lockstep::spank
