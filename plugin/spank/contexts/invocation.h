// The configuration and the options of this process. Slurm calls back with the options' values, in any order
// and more than once; afterwards the contexts read the settings.
//
// Threads: Slurm's main thread.
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

}  // namespace lockstep::spank
