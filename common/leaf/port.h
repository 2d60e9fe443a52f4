// TCP ports for listening.
//
// Threads: safe from any.
#pragma once

#include "common/leaf/unique_fd.h"

namespace lockstep {

inline constexpr int kMaxPort = 65535;

/// A TCP socket that is bound to a free port from `first` to `last` (0 and 0: any) and does not listen yet;
/// empty where no port is free. `port` is set to its port. With `reuse` a port is free also while old
/// connections of it time out, and while another such socket is bound to it and does not listen.
UniqueFd bind_port(int first, int last, bool reuse, int& port);

}  // namespace lockstep
