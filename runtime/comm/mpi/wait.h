// Waits for MPI without using a CPU. MPI's blocking calls spin on a core that the backward of this rank or of
// another one needs; here the thread sleeps between two polls.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include <span>

namespace lockstep::comm::mpi {

/// Returns when all are complete. Throws Error "<call>: <MPI's text>".
void wait(std::span<MPI_Request> requests, const char* call);

/// Sends and receives bytes at the same time, like MPI_Sendrecv.
void exchange(const void* send, std::size_t send_bytes, int to, void* receive, std::size_t receive_bytes,
              int from, int tag, MPI_Comm comm);

}  // namespace lockstep::comm::mpi
