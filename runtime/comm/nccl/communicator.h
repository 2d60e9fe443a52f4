// The communicator among GPUs, over NCCL: operations take memory of one device and run there, on a stream of
// their own, after what the asking thread's stream has been given so far (Communicator::set_stream_source).
// Work::wait() makes the waiting thread's stream wait and returns at once, but for a barrier's, which waits
// itself. A thread looks after them: an operation that does not end within LOCKSTEP_TIMEOUT after those
// before it, or a rank that is gone, ends the job.
//
// What differs from communicators of host memory:
// - NCCL sums each element in one place and hands the result out, so all ranks get the same bits. The order
//   of a sum is NCCL's: it depends on the number of ranks, the size, and on what NCCL finds between the
//   devices; that the same job gives the same bits again is not promised. Halves are rounded at each step of
//   a sum.
// - `scale` is read when the operation is asked for, and elements are multiplied before they are summed. One
//   that a half type cannot hold exactly is refused for it (an average of halves takes 1/size as the type
//   holds it); so are a scale on max and min, and bit_or.
// - `then` is called on a thread of this communicator, within a millisecond after the end; the next operation
//   may have begun.
// - Times: an operation began when the device was given it, and ended when that was seen.
//
// Threads: as comm::Communicator.
#pragma once

#include <mpi.h>

#include <memory>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::nccl {

/// All ranks of `world` call it, each with a device of its own; MPI_COMM_NULL for one rank alone. `world` is
/// copied, and used by no other thread meanwhile. Throws UsageError on every rank, naming the rank and the
/// node, where a rank has no such device or two share one.
std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const Place& place, int device);

}  // namespace lockstep::comm::nccl
