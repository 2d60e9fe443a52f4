// Staging a step's sources on one node: what lockstep-stage is called with.
//
// Threads: a task's process before exec; it has one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/spank/config.h"
#include "plugin/spank/node_tasks.h"
#include "plugin/spank/options.h"
#include "plugin/spank/srun_link.h"

namespace lockstep::spank {

/// A step as one of its nodes sees it.
struct StepOnNode {
  std::uint32_t job = 0;
  std::string step;           ///< "0", "batch", "interactive"
  std::string node;           ///< Slurm's name of this node
  std::uint32_t node_id = 0;  ///< among the step's nodes
  std::uint32_t nodes = 1;    ///< 1 too for a batch or interactive step, which stages for its node alone
  std::string node_list;      ///< of the step, in Slurm's brackets
  std::string component;      ///< tells a heterogeneous step's components apart; they stage each for itself
  std::string srun_address;   ///< srun's address as the nodes see it
  uid_t uid = 0;
  std::string store;  ///< the user's, on this node
  std::string
      links;  ///< takes its place where that cannot be used and the step may read from its source, or ""
  std::string lease;    ///< file whose lock the step holds, or ""
  int alive = -1;       ///< pipe whose other end closes when the tasks end, and background staging with them
  std::string cpus;     ///< where the helper runs, or "": wherever its task may
  std::string record;   ///< folder of the records, or ""
  std::string problem;  ///< why this node cannot stage, known before it starts, or ""
};

/// Stages and agrees with the step's other nodes. A helper that a signal ends is replaced once, by one that
/// tells the others or falls back to the source. `well` when every node has its data; otherwise the tasks
/// have to end, and the one line that says why has been printed, unless the step is being cancelled
/// (`killed`).
Ended stage(const StepOnNode& step, const Config& config, const Settings& settings, const SrunLink* link);

/// The folder of the stores of the tier that is asked for.
const std::string& tier_folder(const Config& config, const Settings& settings);

/// Where the step's tasks find the data.
std::string data_folder(const StepOnNode& step);

/// What lockstep-stage is called with, but for the sources.
std::vector<std::string> step_arguments(const StepOnNode& step, const Config& config,
                                        const Settings& settings);

/// True for the exit code of a helper that crashed, or was killed as the kernel does where memory runs out:
/// it is replaced once. Other signals come from the user or from Slurm.
bool was_killed(int code);

/// True for a value of LOCKSTEP_DATA that names the data of any of this user's jobs.
bool names_our_data(const std::string& folder, uid_t uid);

/// True for a value of LOCKSTEP_RECORD that names the record of any of this user's steps; `records` as
/// configured.
bool names_our_record(const std::string& folder, const std::string& records, uid_t uid);

/// The first of the sources that the step's tasks would not find, or "".
std::string missing_source(const StepOnNode& step, const std::vector<std::string>& sources);

/// The same sources as the nodes see them. Throws Refusal for a relative one without a link.
std::vector<std::string> sources_on_node(const Settings& settings, const Config& config,
                                         const SrunLink* link);

}  // namespace lockstep::spank
