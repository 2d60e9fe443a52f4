// Finds ranks of a node that compute on the same CPUs. A rank that shares some of its CPUs is slower than the others,
// which wait for it in every step.
//
// Threads: values and pure functions; compare_cpus() is collective, from the main thread.
#pragma once

#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// Two ranks of a node whose CPU sets overlap without being equal.
struct CpuOverlap {
  int rank = 0;        ///< the lower one
  int other = 0;       ///< the other rank
  int more_nodes = 0;  ///< further nodes with such ranks
};

struct SharedCpus {
  int ranks = 1;                      ///< the largest number of ranks on a CPU of this rank, itself included
  int threads = 1;                    ///< this rank's share of its CPUs, rounded down; at least 1
  std::optional<CpuOverlap> overlap;  ///< the first one of the job; the same on all ranks
};

/// `cpus` and `nodes` by rank.
SharedCpus find_shared_cpus(const std::vector<std::vector<int>>& cpus, const std::vector<int>& nodes,
                            int rank);

/// All ranks call it with their own CPUs. Prints one line if there is an overlap.
SharedCpus compare_cpus(Communicator& communicator, const std::vector<int>& cpus);

}  // namespace lockstep::comm
