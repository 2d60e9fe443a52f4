// Sets up the OperationSlots that the ranks of a node share.
//
// Threads: the main thread; all ranks of `world` call it.
#pragma once

#include <mpi.h>

#include <vector>

#include "runtime/comm/cpu/operation_slots.h"

namespace lockstep::comm::cpu {

struct Joined {
  OperationSlots slots;
  /// This rank's place. If the ranks of some node cannot share memory, every rank counts as a separate node.
  RankInfo place;
  std::vector<int> ranks;         ///< of `world`, by local rank
  bool ranks_share_cpus = false;  ///< the node has fewer CPUs than ranks
};

/// If the ranks of some node cannot map each other's memory, rank 0 prints the reason.
Joined join(MPI_Comm world, const RankInfo& place);

}  // namespace lockstep::comm::cpu
