// TCP sockets as staging uses them between nodes: listen on one of the allowed ports, connect with a timeout,
// and notice when the other machine has gone away.
//
// Threads: safe from any.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/files.h"

namespace lockstep {

void set_nonblocking(const UniqueFd& socket);

/// Makes the kernel close the connection, with ETIMEDOUT, after the other machine has not answered for about
/// this long, 10 s at least. Also switches TCP_NODELAY on.
void notice_dead_peer(const UniqueFd& socket, std::chrono::seconds within = std::chrono::seconds(30));

/// Sends all bytes. Throws Error naming `peer` if the connection is closed; never raises SIGPIPE.
void send_all(const UniqueFd& socket, std::string_view bytes, const char* peer);

/// The address of this end as text; "" if it is unknown.
std::string local_address(const UniqueFd& socket);

/// Names the other end, for limits on each client; not for people. A local user may take any address of 127.0.0.0/8 and
/// ::1, and an IPv6 machine any of its /64, so these count as one client each.
std::string client_of(const sockaddr& address);
/// The same of a connected socket; "" if the other end is unknown.
std::string client_of(const UniqueFd& socket);

/// Listens on the first free port from `first` to `last` (0 and 0: any port), for IPv6 and IPv4 if the
/// machine has both. Sets `port`. Throws Error if no port is free, or no file descriptor is left.
UniqueFd listen_on(int first, int last, int& port);

/// Connects to the first of the hosts (names or addresses) that answers. Throws Error naming `peer` and all
/// hosts, or saying that no file descriptor is left.
UniqueFd connect_to(const std::vector<std::string>& hosts, int port, std::chrono::milliseconds timeout,
                    const char* peer = "srun's rendezvous");

}  // namespace lockstep
