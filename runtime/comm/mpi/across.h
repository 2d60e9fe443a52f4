// shm::Across over MPI, from the communicator's thread, which waits politely (wait.h).
//
// Threads: made by the main thread, all ranks together; then the communicator's thread.
#pragma once

#include <mpi.h>

#include <memory>

#include "runtime/comm/shm/across.h"

namespace lockstep::comm::mpi {

/// `world` must outlive it; nobody else may use it meanwhile.
std::unique_ptr<shm::Across> connect_nodes(MPI_Comm world, const Place& place);

}  // namespace lockstep::comm::mpi
