// The options of a plan, which `lockstep-pin plan` and `lockstep-pin run` share.
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

  /// Reads the values. Throws UsageError naming an invalid one.
  Request request(const Machine& machine, int tasks) const;
};

}  // namespace lockstep::affinity
