// The CPUs of threads that work beside training: the loader's, the planner's, the writer's of checkpoints. A
// thread inherits the mask of the one that starts it, which OpenMP may have bound to a single CPU.
//
// Threads: safe from any; use_background_cpus() changes the mask of the calling thread only.
#pragma once

#include <vector>

namespace lockstep {

/// LOCKSTEP_WORKER_CPUS; empty if there are none.
std::vector<int> worker_cpus();

/// The worker CPUs, else LOCKSTEP_CPUS; empty if neither is set.
std::vector<int> background_cpus();

/// Binds the calling thread to background_cpus(), if there are any. It stays where it is if the kernel refuses,
/// which World reports at the start.
void use_background_cpus() noexcept;

}  // namespace lockstep
