// The communicator for GPUs, over NCCL. Operations take memory of one device and run there on a separate
// stream, after the work that the calling thread's stream already has (Communicator::set_stream_source).
// Work::wait() makes the calling thread's stream wait and returns at once; only the wait of a barrier blocks
// the thread. A watchdog thread ends the job if an operation does not end within LOCKSTEP_TIMEOUT after the
// one before it, or if a rank has ended.
//
// Differences from the communicators for host memory:
// - NCCL sums each element in one place and distributes the result, so all ranks get the same bits. NCCL
//   chooses the order of a sum from the number of ranks, the size and the links between the devices, so a
//   second run may give other bits. Halves are rounded at each step of a sum.
// - Refused: bit_or, sum_or_max and a scale.
// - exchange() sends and receives memory of the device, like all other operations. NCCL does not compare the sizes that
//   the two ranks of a message give. It connects two ranks in their first exchange, so that call returns when both have
//   called; NCCL keeps buffers in device memory for each such connection.
// - `then` is called on a thread of this communicator, within a millisecond after the end; the next operation
//   may have begun.
// - Every call makes the device current for the calling thread, and leaves it so.
// - Times: an operation begins when it is queued on the device, and ends when the watchdog sees its end.
//
// Threads: as comm::Communicator.
#pragma once

#include <mpi.h>

#include <memory>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::nccl {

/// All ranks of `world` call it, each with its own device; MPI_COMM_NULL for one rank alone. `world` is
/// duplicated; no other thread may use it during the call. Throws UsageError on every rank, naming rank and
/// node, if a rank does not have the device or two ranks share one.
std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const RankInfo& place, int device);

}  // namespace lockstep::comm::nccl
