// One function per callback and context; spank.cpp calls them and catches their exceptions.
//
//   allocator   sbatch and salloc, as the user: reads and checks the options, and passes them on
//   local       srun, as the user: the same, and starts the step's rendezvous
//   remote      slurmstepd on a node, as root; task_init runs in the task's process, as the user
//   job_script  slurmd's helper at a job's end, as root
//
// Threads: Slurm's main thread, or a task's process before exec.
#pragma once

#include <slurm/spank.h>

#include <array>
#include <optional>
#include <string>

#include "common/leaf/options/config.h"
#include "common/leaf/options/options.h"
#include "plugin/spank/staging/srun_link.h"

namespace lockstep::spank {

/// One process (sbatch, srun, slurmstepd) has one of these, in invocation(): Slurm's option callbacks carry
/// no pointer.
struct Invocation {
  Config config;
  bool partition_known = false;  ///< `config` is that of the job's partition
  std::string config_error;      ///< why the administrator's file cannot be used, or ""
  std::array<std::optional<std::string>, kOptions> values;
  std::optional<std::string> link;  ///< an encoded SrunLink, on the nodes

  /// The options' values, with the administrator's defaults for the others. Throws Error, also for values
  /// that the administrator does not allow.
  Settings settings() const;
  /// True if any option has a value.
  bool has_options() const;
  /// True if --stage names data.
  bool stages() const;
};

Invocation& invocation();

/// Reads the administrator's file for a partition. The argument conf= names it; there is a default.
void load_config(int argc, char** argv, const std::string& partition);

/// Registers the options, with `link` also the one that carries srun's link. Called in slurm_spank_init of
/// every context.
void register_options(spank_t spank, bool link);

/// Turns LOCKSTEP_... variables into options, if the command line does not have the option.
void options_from_environment();

/// The name of the variable in which Slurm passes an option to commands inside the job.
std::string option_variable(Option option);

/// The name of that variable for srun's link.
std::string link_variable();

/// The name of such a variable in the environment of sbatch, srun and a job. Srun removes the prefix.
std::string passed_variable(const std::string& name);

/// The exit code of every task of a step whose data cannot be staged.
inline constexpr int kStagingFailed = 3;

/// The variable by which srun tells the nodes that the user chose the binding. Variables named SLURM_ reach
/// the nodes also under --export=NONE.
inline constexpr const char* kBoundByHand = "SLURM_LOCKSTEP_CPU_BIND";
inline constexpr const char* kYes = "yes";

/// The variable by which srun tells the nodes whether the step stages data, in case the plugin fails there before it
/// gets the options.
inline constexpr const char* kStages = "SLURM_LOCKSTEP_STAGES";

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
void init_post_opt(spank_t spank, int argc, char** argv);
void user_init();
void task_init(spank_t spank);
void task_exit();
void exit();

/// The plugin has failed in this slurmstepd; `what` is one line. The step's task_init calls end_task_if_needed().
void refuse(const std::string& what);

/// Prints one line and ends the task with kStagingFailed if the step needs data. Otherwise the task runs without the
/// plugin, and the line is in slurmd's log.
void end_task_if_needed(spank_t spank, const std::string& what);
}  // namespace remote

namespace job_script {
void epilog(spank_t spank, int argc, char** argv);
}  // namespace job_script

/// For sbatch, salloc and srun: the settings with absolute, checked sources. A mistake prints one line and
/// ends the process: Slurm ignores the result of an optional plugin's callback. `in_job`: for a step of a job that runs.
Settings settings_or_exit(bool in_job);

/// For the same commands, after an unexpected failure: prints one line and ends the process if the user has given any of
/// our options, and only logs the line otherwise.
void exit_if_needed(const std::string& what);

/// A variable of the job or task; "" if it is not set.
std::string job_variable(spank_t spank, const char* name);

}  // namespace lockstep::spank
