// Reads the name of this machine.
//
// Threads: safe from any.
#pragma once

#include <string>

namespace lockstep {

/// The full host name. Other machines can reach this one by it.
std::string full_host_name();

/// The host name up to the first dot: the node's name if Slurm does not give one.
std::string host_name();

}  // namespace lockstep
