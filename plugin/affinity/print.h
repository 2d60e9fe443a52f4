// Formats a plan: as JSON for programs, one line per task for the Slurm plugin, a table or a drawing for users.
//
// Threads: pure functions, safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

/// {"topology":{…},"tasks":[{"task":0,"cpus":"0-11","worker_cpus":"","numa":[0],"gpus":[…],"threads":12,"why":"…"}]}
nlohmann::json to_json(const Machine& machine, const std::vector<TaskPlan>& plans);

/// "TASK CPUS WORKER_CPUS NUMA THREADS GPUS PLACES" per line, "-" for an empty field: for readers that link
/// no JSON library.
std::string to_plain(const std::vector<TaskPlan>& plans);

/// A table with a header, columns aligned.
std::string to_table(const std::vector<TaskPlan>& plans);

/// A self-contained SVG document. Worker CPUs are hatched; CPUs without a task are grey.
std::string draw_plan(const Machine& machine, const std::vector<TaskPlan>& plans);

}  // namespace lockstep::affinity
