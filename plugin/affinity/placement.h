// Dealing cores to tasks: the part of the planner that knows the rules of plan.h, and nothing of what a core
// is for.
//
// Threads: a pure function, safe from any.
#pragma once

#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

struct PlacementRequest {
  int tasks = 0;
  int cores_per_task = 0;  ///< at most so many for each; 0: share them all
  Policy policy = Policy::automatic;
  std::vector<std::vector<int>> near;  ///< for each task the domains it wants to sit in; empty: any
};

/// What one task gets.
struct Placement {
  std::vector<std::vector<int>> cores;  ///< CPUs by core; a core that is shared lists this task's CPUs of it
  std::vector<int> domains;             ///< indices of the domains of these cores, ascending
  int sharers = 1;  ///< tasks on the core, above 1 only when there are more tasks than cores
};

/// `cores` are the usable ones with their usable CPUs, in the machine's order; at least one core and one
/// task.
std::vector<Placement> place_tasks(const std::vector<Core>& cores, const PlacementRequest& request);

}  // namespace lockstep::affinity
