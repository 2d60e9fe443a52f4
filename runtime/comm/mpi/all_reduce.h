// All-reduce and reduce-scatter over MPI in rank order. MPI_Allreduce does not promise an order, but the bits
// of a sum depend on it. So each rank collects one part of the elements of all ranks and reduces it in rank
// order, and then the parts are gathered. This moves as few bytes as the best algorithms, and all ranks get
// the same bits.
//
// Threads: the communicator's thread.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::mpi {

/// Works in place. `scratch` grows to the size of the elements (at most 64 MiB); keep it for the next call.
void all_reduce(MPI_Comm world, const Place& place, Buffer buffer, ScaledOp scaled,
                std::vector<std::byte>& scratch);

/// As Communicator::reduce_scatter. `scratch` grows to size() × mine's bytes.
void reduce_scatter(MPI_Comm world, const Place& place, const void* all, Buffer mine, ScaledOp scaled,
                    std::vector<std::byte>& scratch);

}  // namespace lockstep::comm::mpi
