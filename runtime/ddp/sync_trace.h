// The times of the last synchronised backward, for tools that look at single buckets.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// The events of a synchronised backward, in monotonic nanoseconds.
struct SyncTrace {
  struct Launch {
    std::size_t bucket = 0;
    std::size_t bytes = 0;
    std::uint64_t ready_ns = 0;      ///< the bucket's last gradient was complete
    std::uint64_t asked_ns = 0;      ///< this rank started the reduction
    std::uint64_t all_asked_ns = 0;  ///< the last rank started it; 0: unknown (between nodes: a step later)
    int last_rank = -1;              ///< that rank; -1: not known
    std::uint64_t done_ns = 0;
  };
  std::vector<Launch> launches;  ///< in the order in which reductions started
  std::uint64_t backward_began_ns = 0;
  std::uint64_t backward_ended_ns = 0;
  std::uint64_t finished_ns = 0;
};

}  // namespace lockstep
