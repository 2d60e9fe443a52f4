// How the monotonic clocks of two nodes differ, for a time line of all ranks.
//
// Threads: the thread that uses the communicator.
#pragma once

#include <cstdint>
#include <functional>

#include "common/clock.h"
#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// This rank's clock minus rank 0's, in nanoseconds: at least `low`, at most `high`.
struct ClockOffset {
  std::int64_t low = 0;
  std::int64_t high = 0;

  std::int64_t best() const { return low + (high - low) / 2; }
};

/// Collective. A rank leaves an all-gather after every other rank has entered it. So each of a few
/// all-gathers bounds the offset from both sides, as in Cristian's algorithm, and the tightest bounds count.
/// Later drift of the clocks is not covered.
ClockOffset measure_clock_offset(Communicator& communicator,
                                 const std::function<std::uint64_t()>& clock = monotonic_ns);

}  // namespace lockstep::comm
