// One function per callback and context; spank.cpp routes to them. All may throw: the router keeps exceptions
// in.
//
//   allocator   sbatch and salloc, as the user: reads, checks and hands on the options
//   local       srun, as the user: the same, and starts the step's rendezvous
//   remote      slurmstepd on a node: root until task_init, which is the task's process, the user's
//   job_script  slurmd's helper at a job's end, as root
//
// Threads: Slurm's main thread, or a task's process before exec.
#pragma once

#include <slurm/spank.h>

#include <string>
#include <vector>

#include "plugin/spank/options.h"

namespace lockstep::spank {

/// Exit code of every task of a step whose data could not be staged.
inline constexpr int kStagingFailed = 3;

/// With which srun tells the nodes that the user has said where tasks run. Variables named SLURM_ reach them
/// also under --export=NONE.
inline constexpr const char* kBoundByHand = "SLURM_LOCKSTEP_CPU_BIND";
inline constexpr const char* kYes = "yes";

/// File in a step's folder of records that says that its job has ended, and when.
inline constexpr const char* kEnded = "ended";

namespace allocator {
void init(spank_t spank, int argc, char** argv);
void init_post_opt(spank_t spank);
}  // namespace allocator

namespace local {
void init(spank_t spank, int argc, char** argv);
void init_post_opt(spank_t spank);
void user_init();
}  // namespace local

namespace remote {
void init(spank_t spank, int argc, char** argv);
void init_post_opt(spank_t spank);
void user_init();
void task_init(spank_t spank);
void task_exit();
void exit();
}  // namespace remote

namespace job_script {
void epilog(spank_t spank, int argc, char** argv);
}  // namespace job_script

/// For sbatch, salloc and srun: the settings with absolute, checked sources. A mistake ends the command here,
/// with its one line: Slurm ignores what a callback of an optional plugin returns.
Settings settings_or_exit();

/// A variable of the job or task, "" where there is none.
std::string job_variable(spank_t spank, const char* name);

}  // namespace lockstep::spank
