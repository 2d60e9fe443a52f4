// Makes a Machine with hwloc, from the live machine or from a description. Loading takes milliseconds, more
// with PCI devices; a plan on a loaded machine takes microseconds.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

enum class Devices { skip, find };  ///< whether to find GPUs, which walks the PCI buses

/// This machine. CPUs that the cgroup forbids are known but not allowed. Throws Error.
Machine load_live(Devices devices);

/// A file that `lstopo FILE.xml` wrote, or a synthetic description ("package:2 core:8 pu:2"). Throws
/// UsageError naming `topology` if it is neither, Error if a file is not a topology.
Machine load_description(const std::string& topology);

}  // namespace lockstep::affinity
