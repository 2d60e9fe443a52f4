// MPI's collectives that keep the bits as they are.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::mpi {

/// Any size: in pieces where MPI, which counts in int, needs that.
void broadcast(MPI_Comm world, Buffer buffer, int root);

/// `rank`: of this process in `world`. Throws Error for parts of 2 GiB or more.
void all_gather(MPI_Comm world, int rank, Buffer mine, void* all);

/// Bytes of a rank's part as MPI counts them. Throws Error for 2 GiB or more.
int bytes_of_part(const Buffer& mine);

}  // namespace lockstep::comm::mpi
