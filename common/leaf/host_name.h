// The name of this machine.
//
// Threads: safe from any.
#pragma once

#include <string>

namespace lockstep {

/// The whole host name, under which other machines can reach this one.
std::string full_host_name();

/// The host name up to the first dot: the node's name where Slurm gives none.
std::string host_name();

}  // namespace lockstep
