// Ends the job when ranks call different operations.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <string_view>

#include "runtime/comm/cpu/operation_slots.h"

namespace lockstep::comm::cpu {

/// "all_reduce of bucket 3 (6553600 × f32, sum)"
std::string describe(const OperationRequest& request, std::string_view label);

/// Ends the job because the local rank `other` and the first rank of the node call different operations
/// with the same `number`. The first rank prints a line that names both; the others wait until the job ends.
[[noreturn]] void end_job_by_mismatch(const OperationSlots& slots, const RankInfo& place, int other,
                                      std::uint64_t number);

/// Ends the job because this rank waits for `operation`, and the local rank `left` has left without it.
[[noreturn]] void end_job_by_leaving(const OperationSlots& slots, const RankInfo& place, int left,
                                     const std::string& operation);

}  // namespace lockstep::comm::cpu
