// The communicator over MPI: operations wait in a queue and one thread does them, one after the other, with
// blocking calls. MPI's own nonblocking collectives make no progress while nobody is inside MPI, so they
// would not overlap with backward.
//
// Threads: as comm::Communicator.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::mpi {

/// `cpus`: where its thread may run; empty leaves it to the kernel. The session must outlive it.
std::unique_ptr<Communicator> make_communicator(const Session& session, std::vector<int> cpus);

}  // namespace lockstep::comm::mpi
