// Initialises MPI for calls from any thread, finds this rank's place, and finalises MPI.
//
// Threads: made and destroyed by the main thread.
#pragma once

#include <mpi.h>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::mpi {

class Session {
 public:
  /// Initialises MPI unless the program has done so. Throws Error if MPI does not allow calls from several
  /// threads.
  Session(int& argc, char**& argv);
  /// Finalises MPI if the constructor initialised it. That waits for all ranks.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// A duplicate of MPI_COMM_WORLD, so that the program's MPI calls do not mix with those of the library.
  MPI_Comm world() const { return world_; }
  const RankInfo& place() const { return place_; }

 private:
  bool initialised_here_ = false;
  MPI_Comm world_ = MPI_COMM_NULL;
  RankInfo place_;
};

/// This rank's place in `world`; all ranks of `world` call it. The ranks that share memory are a node. With
/// LOCKSTEP_RANKS_PER_NODE they are divided into nodes of that many ranks, for instance one per socket.
RankInfo find_place(MPI_Comm world);

/// Whether World initialised MPI and so finalises it. Then all ranks leave World together.
bool ends_with_world();

/// This process's rank in the job, for messages.
int world_rank();

/// Throws Error "<call>: <MPI's text>" unless the code is MPI_SUCCESS.
void check(int code, const char* call);

/// Aborts the job on all ranks. With Open MPI, without its message about MPI_Abort.
void abort_job(int exit_code);

}  // namespace lockstep::comm::mpi
