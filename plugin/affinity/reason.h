// A plan's reason in words, for the person who wonders why rank 3 runs where it does.
//
// Threads: pure functions, safe from any.
#pragma once

#include <string>
#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/placement.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

/// What make_plan() knows about one task when its plan is done.
struct Findings {
  const Machine& machine;
  const Request& request;
  const Placement& placement;
  const TaskPlan& plan;
  std::vector<int> gpus;       ///< the task's, indices into Machine::gpus
  int usable_cores = 0;        ///< of the whole node
  int idle_cores = 0;          ///< that no task got
  bool workers_share = false;  ///< too few CPUs for workers of their own
  std::vector<int> unusable;   ///< CPUs asked for that are offline or not granted
};

std::string explain(const Findings& findings);

}  // namespace lockstep::affinity
