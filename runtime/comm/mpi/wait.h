// Waiting for MPI without taking a CPU from those who compute. MPI's own blocking calls look again and again
// as fast as they can, on a core that this rank's or its neighbour's backward needs; here the thread naps
// between two looks.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include <span>

namespace lockstep::comm::mpi {

/// Returns when all are complete. Throws Error "<call>: <MPI's text>".
void wait(std::span<MPI_Request> requests, const char* call);

/// Sends and receives at the same time; like MPI_Sendrecv of bytes.
void exchange(const void* send, std::size_t send_bytes, int to, void* receive, std::size_t receive_bytes,
              int from, int tag, MPI_Comm comm);

}  // namespace lockstep::comm::mpi
