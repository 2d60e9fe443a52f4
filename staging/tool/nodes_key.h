// The secret by which nodes that put together without Slurm know each other, where the user names none.
//
// Threads: safe from any; several processes may do so at once, also on other nodes that have the same home.
#pragma once

#include <string>

namespace lockstep::transfer {

/// The user's own key, from $XDG_CONFIG_HOME or ~/.config, lockstep/nodes.key, made where there is none:
/// nodes that share the home have the same. Throws Error naming the file where it cannot be made or read, or
/// others could read it; UsageError where there is no home.
std::string own_nodes_key();

}  // namespace lockstep::transfer
