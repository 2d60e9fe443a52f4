// A file in memory without a name, for data that other processes read through its descriptor.
//
// Threads: safe from any.
#pragma once

#include "common/leaf/unique_fd.h"

namespace lockstep {

/// Closed by exec; nobody can execute it, so administrators may forbid executable ones (vm.memfd_noexec=2). `name` is for
/// people who look into /proc. On an error the descriptor is empty, and errno says why.
UniqueFd make_memory_file(const char* name);

}  // namespace lockstep
