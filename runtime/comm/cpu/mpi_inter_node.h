// InterNode over MPI. It waits without using a CPU (comm/mpi/wait.h).
//
// Threads: the main thread makes it, on all ranks together; then only the communicator's thread uses it.
#pragma once

#include <mpi.h>

#include <memory>

#include "runtime/comm/cpu/inter_node.h"

namespace lockstep::comm::cpu {

/// `world` must outlive the result, and nothing else may use `world` until the result is destroyed.
std::unique_ptr<InterNode> connect_nodes(MPI_Comm world, const Place& place);

}  // namespace lockstep::comm::cpu
