// NCCL's communicator, begun over MPI and ended: nothing in here blocks for longer than LOCKSTEP_TIMEOUT
// without the job being ended, since NCCL is told not to block and is asked instead.
//
// Threads: calls into one Session are made one after the other (the communicator holds a lock).
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <memory>
#include <string>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::nccl {

class Session {
 public:
  /// All ranks of `world` call it, each with a device of its own; MPI_COMM_NULL for one rank alone. Throws
  /// UsageError on every rank where a rank has no device or shares it, Error where NCCL cannot start. `name`
  /// says in errors which group of ranks it is.
  Session(MPI_Comm world, const Place& place, int device, std::string name);
  /// Waits for the other ranks' end.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The part of these ranks that `part` holds (MPI_COMM_NULL for one rank alone); null where `color` is
  /// negative. All ranks call it.
  std::unique_ptr<Session> split(int color, MPI_Comm part, const Place& place, std::string name);

  ncclComm_t get() const { return handle_; }

  /// Waits until the call that returned `result` has been taken. Throws Error "<call>: <NCCL's text>".
  void settle(ncclResult_t result, const char* call);

  /// Throws Error when NCCL has found something wrong since: a rank that is gone, a network that is down.
  void check_health();

 private:
  Session(ncclComm_t handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  // Ends what the device is waiting for, as far as that is possible within 2 s.
  void abort();

  ncclComm_t handle_ = nullptr;
  std::string name_;
};

}  // namespace lockstep::comm::nccl
