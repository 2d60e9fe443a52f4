// The MPI collectives that only move data.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::mpi {

/// Copies a buffer of any size, in pieces of 1 GiB because MPI counts in int.
void broadcast(MPI_Comm world, Buffer buffer, int root);

/// `rank`: this process's rank in `world`. Throws Error for parts of 2 GiB or more.
void all_gather(MPI_Comm world, int rank, Buffer mine, void* all);

/// The bytes of a rank's part as an int. Throws Error for 2 GiB or more.
int bytes_of_part(const Buffer& mine);

}  // namespace lockstep::comm::mpi
