// Stages a step's sources on one node: runs lockstep-stage and judges its end.
//
// Threads: a task's process before exec; it has one thread.
#pragma once

#include <string>
#include <vector>

#include "common/leaf/options/config.h"
#include "common/leaf/options/options.h"
#include "plugin/spank/process/node_tasks.h"
#include "plugin/spank/staging/srun_link.h"
#include "staging/step/request.h"

namespace lockstep::spank {

/// A step as one of its nodes sees it; request_for() adds the rest of the request.
struct StepOnNode : transfer::StepRequest {
  uid_t uid = 0;
  std::string links;     ///< replaces an unusable store if the step may read from its source, or ""
  int lifetime_fd = -1;  ///< read end of a pipe that closes, and ends background staging, when the tasks end
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

/// What lockstep-stage is to do. Does not throw: refused sources are the request's problem.
transfer::StepRequest request_for(const StepOnNode& step, const Config& config, const Settings& settings,
                                  const SrunLink* link);

/// True for the exit code of a helper that crashed or that the kernel killed for lack of memory: it is
/// replaced once. Other signals come from the user or from Slurm.
bool was_killed(int code);

/// True if `folder` is the LOCKSTEP_DATA of one of this user's jobs.
bool is_data_folder(const std::string& folder, uid_t uid);

/// True if `folder` is the LOCKSTEP_RECORD of one of this user's steps; `records` as configured.
bool is_record_folder(const std::string& folder, const std::string& records, uid_t uid);

/// The first source that the step's tasks would not find, or "".
std::string missing_source(const StepOnNode& step, const std::vector<std::string>& sources);

}  // namespace lockstep::spank
