// An NCCL communicator, set up over MPI. NCCL is used without blocking and polled, so a call that takes
// longer than LOCKSTEP_TIMEOUT ends the job instead of hanging.
//
// Threads: one thread at a time (the communicator holds a lock).
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <memory>
#include <string>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::nccl {

class Session {
 public:
  /// All ranks of `world` call it, each with its own device; MPI_COMM_NULL for one rank alone. `name` names
  /// the group of ranks in errors. The device stays current. Throws UsageError on every rank if a rank has no device or two ranks share
  /// one, Error if NCCL cannot start.
  Session(MPI_Comm world, const RankInfo& place, int device, std::string name);
  /// Waits until the other ranks end their sessions.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The session of the ranks in `part` (MPI_COMM_NULL for one rank alone); null if `color` is negative. All
  /// ranks call it.
  std::unique_ptr<Session> split(int color, MPI_Comm part, const RankInfo& place, std::string name);

  ncclComm_t get() const { return handle_; }

  /// Waits until NCCL has accepted the call that returned `result`. Throws Error "<call>: <NCCL's text>".
  void settle(ncclResult_t result, const char* call);

  /// Throws Error if NCCL has reported an error in the meantime: a rank has ended, or the network is down.
  void check_health();

 private:
  Session(ncclComm_t handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  // Cancels what the device waits for, if that is possible within 2 s.
  void abort();

  ncclComm_t handle_ = nullptr;
  std::string name_;
};

}  // namespace lockstep::comm::nccl
