// A file system that passes everything through to a backing folder and meters it. What the kernel's page
// cache of one machine holds is read again after each open, so the bytes counted do not depend on how much
// memory is free. Locks (flock, fcntl) hold within one machine.
//
// Threads: serve() uses its own; everything else is main's.
#pragma once

#include <filesystem>

#include "examples/cluster/metered_fs/meter.h"

namespace lockstep::metered_fs {

/// Mounts `backing` at `mount_point` and serves it until it is unmounted or a signal comes. Throws Error.
void serve(const std::filesystem::path& backing, const std::filesystem::path& mount_point, Meter& meter,
           Counters& counters);

}  // namespace lockstep::metered_fs
