// A pipe.
//
// Threads: one at a time.
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

}  // namespace lockstep
