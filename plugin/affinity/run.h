// `lockstep-pin run`: this process becomes the given command, on the CPUs of its plan.
//
// Threads: main's thread, before any other starts.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/options.h"

namespace lockstep::affinity {

struct RunRequest {
  PlanOptions options;
  std::optional<int> tasks;       ///< on this node; nothing: what the launcher says, else 1
  std::optional<int> local_rank;  ///< nothing: what the launcher says, else 0
  bool explain = false;           ///< print the plan's reason on standard error
  std::vector<std::string> command;
};

/// Does not return where it succeeds. Throws Error naming the command that could not be started.
[[noreturn]] void run_pinned(const RunRequest& request);

/// The variables that a pinned task finds (docs/users/pinning.md).
std::vector<std::pair<std::string, std::string>> task_environment(const Machine& machine,
                                                                  const TaskPlan& plan, Policy policy);

}  // namespace lockstep::affinity
