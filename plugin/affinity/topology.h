// Where a Machine comes from: hwloc, live or from a description. Loading is the slow part (milliseconds for a
// live machine, more with PCI devices); a plan on a loaded machine takes microseconds.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "plugin/affinity/machine.h"

namespace lockstep::affinity {

enum class Devices { skip, find };  ///< whether to look for GPUs, which costs a walk over the PCI buses

/// This machine. What the cgroup forbids is known but not allowed. Throws Error.
Machine load_live(Devices devices);

/// A file that `lstopo FILE.xml` wrote, or else a synthetic description ("package:2 core:8 pu:2").
/// Throws UsageError naming `topology` when it is neither, Error when a file cannot be read as a topology.
Machine load_description(const std::string& topology);

/// Spreads the pages of this thread, and of what it will exec, over the given NUMA nodes (kernel numbers).
/// Throws Error naming the nodes when the kernel refuses.
void interleave_memory(const std::vector<int>& nodes);

}  // namespace lockstep::affinity
