// The secret that nodes share when they run `lockstep-stage put --nodes` without Slurm and the user names no
// key.
//
// Threads: safe from any; several processes at once, also on other nodes that share the home folder.
#pragma once

#include <string>

namespace lockstep::transfer {

/// The user's key: lockstep/nodes.key in $XDG_CONFIG_HOME or ~/.config, made if it is missing. Nodes that
/// share the home folder have the same key. Throws Error naming the file if it cannot be made or read, or if
/// others could read it; UsageError if there is no home folder.
std::string own_nodes_key();

}  // namespace lockstep::transfer
