// Finds TCP ports for listening.
//
// Threads: safe from any.
#pragma once

#include "common/leaf/unique_fd.h"

namespace lockstep {

inline constexpr int kMaxPort = 65535;

/// Binds a TCP socket to a free port from `first` to `last` (0 and 0: any) and sets `port`. The socket does
/// not listen yet. Empty if no port is free. With `reuse`, a port also counts as free while its old
/// connections time out, and while another such socket is bound to it without listening.
UniqueFd bind_port(int first, int last, bool reuse, int& port);

}  // namespace lockstep
