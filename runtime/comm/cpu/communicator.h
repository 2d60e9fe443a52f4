// The communicator for host memory: shared memory within a node, MPI between nodes. Operations first reduce
// on each node, then ranks with the same local rank exchange one slice each.
//
// On one node there is no thread: every call that starts an operation, waits for one or is progress()
// advances all operations. With several nodes a thread does it, because MPI makes progress only inside its
// calls.
//
// Threads: as comm::Communicator.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::cpu {

/// All ranks of `world` call it. MPI and `world` must outlive the result. `cpus`: where its thread may run;
/// empty for any CPU. If the ranks of some node cannot share memory, everything goes over MPI and rank 0
/// prints the reason.
std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const RankInfo& place, std::vector<int> cpus);

}  // namespace lockstep::comm::cpu
