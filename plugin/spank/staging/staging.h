// Stages a step's sources on one node: runs lockstep-stage and judges its end.
//
// Threads: a task's process before exec; it has one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/spank/options/config.h"
#include "plugin/spank/options/options.h"
#include "plugin/spank/process/node_tasks.h"
#include "plugin/spank/staging/srun_link.h"

namespace lockstep::spank {

/// A step as one of its nodes sees it.
struct StepOnNode {
  std::uint32_t job = 0;
  std::string restart;        ///< how often Slurm has queued the job again; "" for never
  std::string step;           ///< "0", "batch", "interactive"
  std::string node;           ///< Slurm's name of this node
  std::uint32_t node_id = 0;  ///< among the step's nodes
  std::uint32_t nodes = 1;    ///< 1 also for a batch or interactive step, which stages for its node alone
  std::string node_list;      ///< the step's nodes, in Slurm's brackets
  std::string component;      ///< distinguishes a heterogeneous step's components, which stage separately
  std::string srun_address;   ///< srun's address as the nodes see it
  uid_t uid = 0;
  std::string store;     ///< the user's store on this node
  std::string links;     ///< replaces an unusable store if the step may read from its source, or ""
  std::string lease;     ///< file whose lock the step holds, or ""
  int lifetime_fd = -1;  ///< read end of a pipe that closes, and ends background staging, when the tasks end
  std::string cpus;      ///< the helper's CPUs; "": those of its task
  std::string record;    ///< folder of the records, or ""
  std::string problem;   ///< a reason, known before staging, why this node cannot stage; or ""
};

/// Stages, and agrees on the result with the step's other nodes. A helper that a signal ends is replaced
/// once, by one that tells the others or falls back to the source. Returns `succeeded` when every node has
/// its data. Otherwise the tasks must end: `failed` after one line with the reason, `killed` if the step
/// is being cancelled.
WorkResult stage(const StepOnNode& step, const Config& config, const Settings& settings,
                 const SrunLink* link);

/// The folder of the stores of the requested tier.
const std::string& tier_folder(const Config& config, const Settings& settings);

/// The value of LOCKSTEP_DATA.
std::string data_folder(const StepOnNode& step);

/// The command line of lockstep-stage, without what its standard input has: the problem and the sources.
std::vector<std::string> step_arguments(const StepOnNode& step, const Config& config,
                                        const Settings& settings);

/// True for the exit code of a helper that crashed or that the kernel killed for lack of memory: it is
/// replaced once. Other signals come from the user or from Slurm.
bool was_killed(int code);

/// True if `folder` is the LOCKSTEP_DATA of one of this user's jobs.
bool is_data_folder(const std::string& folder, uid_t uid);

/// True if `folder` is the LOCKSTEP_RECORD of one of this user's steps; `records` as configured.
bool is_record_folder(const std::string& folder, const std::string& records, uid_t uid);

/// The first source that the step's tasks would not find, or "".
std::string missing_source(const StepOnNode& step, const std::vector<std::string>& sources);

/// The sources as absolute paths. Throws Error for a relative one without a link.
std::vector<std::string> sources_on_node(const Settings& settings, const Config& config,
                                         const SrunLink* link);

}  // namespace lockstep::spank
