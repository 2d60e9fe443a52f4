// The limit of open files. Slurm and login shells usually start programs with a soft limit of 1,024, which a
// job on many nodes exceeds, and a hard limit that is far above it.
//
// Threads: raise it before threads start that read the limit; the rest is safe from any.
#pragma once

namespace lockstep {

/// Raises this process's limit of open files to its hard limit. Programs that it starts inherit the limit.
void raise_open_files_limit();

/// Whether a call failed with this errno because the process or the machine has no file descriptor left.
bool no_descriptor_left(int error);

/// What to write if no_descriptor_left().
inline constexpr const char* kNoDescriptorLeft =
    "no file descriptor is left: raise the limit of open files (ulimit -Hn)";

}  // namespace lockstep
