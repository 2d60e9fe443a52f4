// The communicator for ranks that share memory, alone or composed with MPI between nodes. On one node no
// thread is needed: whoever asks, waits or calls progress() moves all operations on. With several nodes one
// thread does, since MPI moves only while somebody is inside: it adds up on the node first, and ranks with
// the same place on their nodes then exchange a slice each.
//
// Threads: as comm::Communicator.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::shm {

/// For all ranks of `world`; all of them call it. MPI and `world` must outlive it. `cpus`: where its thread
/// may run, empty leaves it to the kernel. Where the ranks of some node cannot share memory rank 0 says why,
/// and everything goes over MPI.
std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const Place& place, std::vector<int> cpus);

}  // namespace lockstep::comm::shm
