// Checks of what Slurm and munge do for jobs on this node.
//
// Threads: main's thread; the functions run other programs.
#pragma once

#include <optional>

#include "plugin/doctor/configuration.h"

namespace lockstep::doctor {

/// "slurm": returns false if this machine does not have it, so that the other checks here do not apply.
bool check_slurm(Report& report);

/// "plugin": plugstack.conf has the plugin's line, the file is there, has this version and loads.
void check_plugin(const std::optional<PluginLine>& line, const std::string& option_prefix, Report& report);

/// "helpers": lockstep-stage and lockstep-pin are in the folder that lockstep.conf names, in this version.
void check_helpers(const spank::Config& config, Report& report);

/// "pmix": in a step, srun's tasks can find each other; elsewhere, srun offers PMIx. Skipped for the ranks of torchrun.
void check_pmix(Report& report);

/// "munge": the daemon answers. "slurmctld": it answers and accepts this node's credentials.
void check_munge(Report& report);

}  // namespace lockstep::doctor
