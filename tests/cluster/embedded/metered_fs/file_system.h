// A file system that passes everything through to a backing folder and meters it. Each open empties the page
// cache of the file, so the counted bytes do not depend on free memory. Locks (flock, fcntl) work within one
// machine.
//
// Threads: serve() starts its own; everything else runs in main's.
#pragma once

#include <filesystem>

#include "tests/cluster/embedded/metered_fs/meter.h"

namespace lockstep::metered_fs {

/// Mounts `backing` at `mount_point` and serves it until it is unmounted or the process gets a signal. Throws
/// Error.
void serve(const std::filesystem::path& backing, const std::filesystem::path& mount_point, Meter& meter,
           Counters& counters);

}  // namespace lockstep::metered_fs
