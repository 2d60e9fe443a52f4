// The options that say what to plan for: the same for `lockstep-pin plan` and `lockstep-pin run`.
//
// Threads: main's thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "plugin/affinity/machine.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

struct PlanOptions {
  std::string policy = "auto";
  std::string memory = "local";
  std::string gpus;
  std::string within;
  int cpus_per_task = 0;
  int workers = 0;
  int smt = 0;

  void add_to(CLI::App& app);

  /// Reads the words. Throws UsageError naming the one that is wrong.
  Request request(const Machine& machine, int tasks) const;
};

}  // namespace lockstep::affinity
