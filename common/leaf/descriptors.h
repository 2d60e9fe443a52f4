// File descriptors: pipes, files in memory, and the limit of open files.
//
// Threads: a Pipe is one thread's at a time. Raise the limit before threads start that read it; the rest is safe from any.
#pragma once

#include <cstddef>
#include <string>

#include "common/leaf/unique_fd.h"

namespace lockstep {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;

  /// Both ends are closed by exec. Throws Error.
  Pipe();
};

/// Reads once and appends what was read; drops it if `into` has `max_bytes` already. Closes the descriptor at the end of
/// the pipe and on an error.
void drain(UniqueFd& end, std::string& into, std::size_t max_bytes = std::string::npos);

/// Closed by exec; nobody can execute it, so administrators may forbid executable ones (vm.memfd_noexec=2). `name` is for
/// people who look into /proc. On an error the descriptor is empty, and errno says why.
UniqueFd make_memory_file(const char* name);

/// Raises this process's limit of open files to its hard limit. Programs that it starts inherit the limit.
void raise_open_files_limit();

/// Whether a call failed with this errno because the process or the machine has no file descriptor left.
bool no_descriptor_left(int error);

/// What to write if no_descriptor_left().
inline constexpr const char* kNoDescriptorLeft =
    "no file descriptor is left: raise the limit of open files (ulimit -Hn)";

}  // namespace lockstep
