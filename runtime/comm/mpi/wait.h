// Waits for MPI without using a CPU. MPI's blocking calls spin on a core that the backward of this rank or of
// another one needs; here the thread sleeps between two polls.
//
// Threads: one at a time for each communicator.
#pragma once

#include <chrono>
#include <functional>

namespace lockstep::comm::mpi {

/// Poll for this long without sleeping: a small message has arrived by then.
constexpr std::chrono::microseconds kSpin{10};
/// Sleep for this long between two polls later: short compared with the time in which socket buffers fill, long
/// compared with a poll.
constexpr std::chrono::microseconds kNap{20};

/// Sleeps. By default Linux may let a sleep take 50 µs more than was asked for; this one ends within a few microseconds.
void nap(std::chrono::nanoseconds duration);

/// Returns when `condition` is true. It is called often, and should call MPI, which makes progress only then.
void wait_until(const std::function<bool()>& condition);

}  // namespace lockstep::comm::mpi
