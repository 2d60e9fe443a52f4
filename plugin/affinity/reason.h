// The reasons of a plan in words, for users who want to know why rank 3 runs on these CPUs.
//
// Threads: pure functions, safe from any.
#pragma once

#include <string>
#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/placement.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

/// The facts about one task that the reason is made of.
struct Findings {
  const Machine& machine;
  const Request& request;
  const TaskCores& placement;
  const TaskPlan& plan;
  std::vector<int> gpus;       ///< the task's GPUs, indices into Machine::gpus
  int usable_cores = 0;        ///< of the whole node
  int idle_cores = 0;          ///< without a task
  bool workers_share = false;  ///< too few CPUs for separate worker CPUs
  std::vector<int> unusable;   ///< requested CPUs that are offline or not granted
};

std::string explain(const Findings& findings);

}  // namespace lockstep::affinity
