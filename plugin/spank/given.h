// What was asked for in this process: Slurm calls back with the options' values, in any order and more than
// once, and afterwards the contexts ask for the settings that hold.
//
// Threads: Slurm's main thread.
#pragma once

#include <slurm/spank.h>

#include <array>
#include <optional>
#include <string>

#include "plugin/spank/config.h"
#include "plugin/spank/options.h"
#include "plugin/spank/srun_link.h"

namespace lockstep::spank {

/// All that one process (sbatch, srun, slurmstepd) knows about the call. There is one: Slurm's option
/// callbacks carry no pointer.
struct Given {
  Config config;
  bool partition_known = false;  ///< the configuration is that of the job's partition
  std::string config_error;      ///< why the administrator's file could not be used, or ""
  std::array<std::optional<std::string>, kOptions> values;
  std::optional<std::string> link;  ///< of srun, on the nodes

  /// The settings: given values over the administrator's defaults. Throws Refusal, also for what the
  /// administrator does not allow.
  Settings settings() const;
  /// True where any option was given.
  bool any() const;
};

Given& given();

/// Reads the administrator's file named by conf= (a default without it) for a partition.
void load_config(int argc, char** argv, const std::string& partition);

/// Registers the options, and with `link` also srun's own. Called in slurm_spank_init of every context.
void register_options(spank_t spank, bool link);

/// Turns LOCKSTEP_... variables into options, for those options that no command line gave.
void options_from_environment();

/// Name of the variable in which Slurm hands an option on to commands inside the job.
std::string handed_on_name(Option option);

/// The same for srun's link.
std::string link_variable();

}  // namespace lockstep::spank
