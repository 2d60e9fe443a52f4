// Ends the job when ranks ask for different things.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <string_view>

#include "runtime/comm/shm/board.h"

namespace lockstep::comm::shm {

/// "all_reduce of bucket 3 (6553600 × f32, sum)"
std::string describe(const Request& request, std::string_view label);

/// The node's first rank prints the line that names it and `other`, whose request number `number` differs
/// from its own; other ranks wait for that to end them.
[[noreturn]] void end_job_by_mismatch(const Board& board, const Place& place, int other,
                                      std::uint64_t number);

/// The same where the local rank `gone` has left without asking for `operation`, which this rank is in.
[[noreturn]] void end_job_by_leaving(const Board& board, const Place& place, int gone,
                                     const std::string& operation);

}  // namespace lockstep::comm::shm
