// A plan as a drawing: packages, NUMA nodes, caches and hardware threads, coloured by task.
//
// Threads: a pure function, safe from any.
#pragma once

#include <string>
#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

/// A self-contained SVG document. Worker CPUs are hatched; CPUs without a task are grey.
std::string draw_plan(const Machine& machine, const std::vector<TaskPlan>& plans);

}  // namespace lockstep::affinity
