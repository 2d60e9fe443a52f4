// How the ranks of a node come to share a board.
//
// Threads: the main thread; all ranks of `world` call it.
#pragma once

#include <mpi.h>

#include <vector>

#include "runtime/comm/shm/board.h"

namespace lockstep::comm::shm {

struct Joined {
  Board board;
  /// As the group sees it: where memory cannot be shared every rank is a node of its own.
  Place place;
  std::vector<int> ranks;         ///< of `world`, by local rank
  bool ranks_share_cpus = false;  ///< the node's ranks have fewer CPUs than they are
};

/// Rank 0 says why on standard error where the ranks of some node cannot map each other's memory.
Joined join(MPI_Comm world, const Place& place);

}  // namespace lockstep::comm::shm
