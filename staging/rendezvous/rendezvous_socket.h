// The TCP habits of the rendezvous.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/files.h"

namespace lockstep::transfer {

void set_nonblocking(const UniqueFd& socket);

/// Lets the kernel end the connection when the other machine is gone without a word, after about half a
/// minute.
void notice_dead_peer(const UniqueFd& socket);

/// Sends all bytes; a connection that is closed is an Error naming `whom`, never SIGPIPE.
void send_all(const UniqueFd& socket, std::string_view bytes, const char* whom);

/// The address of this end, as text.
std::string local_address(const UniqueFd& socket);

/// A socket that listens, on one of the ports from `first` to `last`; 0 and 0: any. `port` says which. Throws
/// Error where all are taken.
UniqueFd listen_on(int first, int last, int& port);

/// Connects to the first of the hosts (names or addresses) that answers. Throws Error naming all of them.
UniqueFd connect_to(const std::vector<std::string>& hosts, int port, std::chrono::milliseconds patience,
                    const char* whom = "srun's rendezvous");

}  // namespace lockstep::transfer
