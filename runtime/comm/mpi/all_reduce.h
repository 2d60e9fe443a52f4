// All-reduce and reduce-scatter over MPI in rank order. MPI_Allreduce promises no order, and a sum's bits
// depend on it; so each rank collects one part of everybody's elements, reduces it in rank order, and the
// parts are gathered. That moves as many bytes as the best algorithms do, and all ranks get the same bits by
// construction.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::mpi {

/// In place. `scratch` grows to the size of the elements (at most 64 MiB) and is kept for the next call.
void all_reduce(MPI_Comm world, const Place& place, Buffer buffer, Finish finish,
                std::vector<std::byte>& scratch);

/// As Communicator::reduce_scatter. `scratch` grows to size() × mine's bytes.
void reduce_scatter(MPI_Comm world, const Place& place, const void* all, Buffer mine, Finish finish,
                    std::vector<std::byte>& scratch);

}  // namespace lockstep::comm::mpi
