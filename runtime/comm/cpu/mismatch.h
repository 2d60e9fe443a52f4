// Ends the job when ranks ask for different operations.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <string_view>

#include "runtime/comm/cpu/operation_slots.h"

namespace lockstep::comm::cpu {

/// "all_reduce of bucket 3 (6553600 × f32, sum)"
std::string describe(const OperationRequest& request, std::string_view label);

/// The local rank `other` asks for another operation number `number` than the first rank of the node. The
/// first rank prints a line that names both; the other ranks wait until that ends them.
[[noreturn]] void end_job_by_mismatch(const OperationSlots& slots, const Place& place, int other,
                                      std::uint64_t number);

/// The local rank `left` has left without asking for `operation`, which this rank is in.
[[noreturn]] void end_job_by_leaving(const OperationSlots& slots, const Place& place, int left,
                                     const std::string& operation);

}  // namespace lockstep::comm::cpu
