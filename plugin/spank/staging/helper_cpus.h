// The CPUs that the staging helper runs on. While the tasks wait for it, these are all CPUs that the step has
// on the node; while the tasks run, those that no task was given, if there are any.
//
// Threads: step_cpus() from a process with one thread; spare_cpus() from any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::spank {

/// The step's CPUs as the control group has them, also those that the calling task is not bound to. None if
/// the step was given only part of the node (`granted` CPUs) and no control group confines it: then the
/// step's CPUs are unknown. A control group may contain the whole node, where `granted` may be a number of cores. `groups` lists
/// the control groups of this process, whose files are below `root`.
std::vector<int> step_cpus(std::uint32_t granted, const std::string& groups = "/proc/self/cgroup",
                           const std::string& root = "/sys/fs/cgroup");

/// Those of the step's CPUs (ascending) that no task was given; if there are none, those on which no task
/// computes; if there are none of these either, all. `of_tasks` are the CPUs of all tasks, `computing` those
/// for compute.
std::vector<int> spare_cpus(const std::vector<int>& step, const std::vector<int>& of_tasks,
                            const std::vector<int>& computing);

}  // namespace lockstep::spank
