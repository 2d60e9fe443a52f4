// Work that must succeed on every rank before any rank goes on, such as opening data: a rank that fails alone
// would leave the others waiting for it.
//
// Threads: the thread that uses the communicator.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// Why work failed. `rank` and `reason` are the same on all ranks.
struct RankFailure {
  int rank = 0;            ///< the lowest rank that failed
  std::string reason;      ///< the first line of its exception, at most 399 bytes
  std::exception_ptr own;  ///< the exception of this rank; null if it did not fail
};

/// Collective: runs `work` on every rank and returns the failure if it threw on any of them. Collectives
/// inside `work` must fail on all ranks or on none. `label` names the work in errors, the same on all ranks.
std::optional<RankFailure> run_on_all_ranks(Communicator& communicator, std::string_view label,
                                            const std::function<void()>& work);

}  // namespace lockstep::comm
