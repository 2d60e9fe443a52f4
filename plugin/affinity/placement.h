// Distributes cores to tasks. This part of the planner knows the rules of plan.h, but not how a task uses its
// cores.
//
// Threads: a pure function, safe from any.
#pragma once

#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

struct PlacementRequest {
  int tasks = 0;
  int cores_per_task = 0;  ///< maximum for each; 0: share all cores
  Policy policy = Policy::automatic;
  std::vector<std::vector<int>> near;  ///< for each task the domains of its GPUs; empty: any
};

/// The cores of one task.
struct TaskCores {
  std::vector<std::vector<int>> cores;  ///< CPUs by core; of a shared core only this task's CPUs
  std::vector<int> domains;             ///< indices of the domains of these cores, ascending
  int sharers = 1;  ///< tasks on the core, above 1 only when there are more tasks than cores
};

/// `cores` are the usable cores with their usable CPUs, in the machine's order. There must be at least one
/// core and one task.
std::vector<TaskCores> place_tasks(const std::vector<Core>& cores, const PlacementRequest& request);

}  // namespace lockstep::affinity
