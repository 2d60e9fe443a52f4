// Stages a step's sources on one node: runs lockstep-stage and judges its end.
//
// Threads: a task's process before exec; it has one thread. StepLease: slurmstepd's main thread; in user_init it acts as the
// job's user, in exit as root.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/leaf/options/config.h"
#include "common/leaf/options/options.h"
#include "common/leaf/unique_fd.h"
#include "plugin/spank/process/folder.h"
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

/// The step's CPUs as the control group has them, also those that the calling task is not bound to. None if
/// the step was given only part of the node (`granted` CPUs) and no control group confines it: then the
/// step's CPUs are unknown. A control group may contain the whole node, where `granted` may be a number of cores. `groups` lists
/// the control groups of this process, whose files are below `root`.
std::vector<int> step_cpus(std::uint32_t granted, const std::string& groups = "/proc/self/cgroup",
                           const std::string& root = "/sys/fs/cgroup");

/// Those of the step's CPUs (ascending) that no task was given; if there are none, those on which no task
/// computes; if there are none of these either, all. `of_tasks` are the CPUs of all tasks, `computing` those
/// for compute.
std::vector<int> spare_cpus(const std::vector<int>& step, const std::vector<int>& of_tasks,
                            const std::vector<int>& computing);

/// A step's lease on the objects that it uses in the user's store: a file, leases/held/JOB.STEP, with a shared lock.
/// lockstep-stage gives the file a second name for each object that the step uses; nobody uses an object whose lease files can
/// all be locked exclusively. The kernel frees the lock when the last process that holds it ends, however it ends, so nothing
/// needs cleaning after a kill or a reboot. The destructor leaves the file's name: a forked process may still hold the lock.
class StepLease {
 public:
  /// Takes the lease in a store that exists and belongs to the calling user. Throws Error naming the path and
  /// the reason.
  static StepLease take(const std::string& store, const std::string& name);

  /// For a step that has ended: removes the name, unless another component of a heterogeneous step, which has
  /// the same job and step numbers, holds the lock too.
  void remove_name() const;

  std::string path() const { return folder_.path() + "/" + name_; }

 private:
  StepLease(Folder folder, std::string name, UniqueFd fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(std::move(fd)) {}

  Folder folder_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace lockstep::spank
