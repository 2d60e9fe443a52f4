// `lockstep-pin run`: this process executes the command on the CPUs of its plan.
//
// Threads: main's thread, before any other starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/affinity/options.h"

namespace lockstep::affinity {

struct RunRequest {
  PlanOptions options;
  std::optional<int> tasks;       ///< on this node; default: from the launcher, or 1
  std::optional<int> local_rank;  ///< default: from the launcher, or 0
  bool explain = false;           ///< print the plan's reason on standard error
  std::vector<std::string> command;
};

/// Never returns. Throws Error naming the command if it cannot be started.
[[noreturn]] void run_pinned(const RunRequest& request);

}  // namespace lockstep::affinity
