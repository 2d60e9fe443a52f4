// MPI, begun and ended: initialised for calls from any thread, and this rank's place found.
//
// Threads: made and destroyed by the main thread.
#pragma once

#include <mpi.h>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::mpi {

class Session {
 public:
  /// Initialises MPI unless the program has done so. Throws Error where MPI does not allow calls from several
  /// threads.
  Session(int& argc, char**& argv);
  /// Finalises MPI if the constructor initialised it; that waits for all ranks.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// A communicator of our own with all ranks, so that the program's MPI calls do not mix with ours.
  MPI_Comm world() const { return world_; }
  const Place& place() const { return place_; }

 private:
  bool initialised_here_ = false;
  MPI_Comm world_ = MPI_COMM_NULL;
  Place place_;
};

/// This rank's place in `world`; all its ranks call it. A node is what shares memory, or, with
/// LOCKSTEP_RANKS_PER_NODE, that many neighbouring ranks of it: one for each socket, say.
Place find_place(MPI_Comm world);

/// Whether MPI ends with World, which initialised it; then all ranks leave World together.
bool ends_with_world();

/// This process's rank among all of the job, for messages.
int world_rank();

/// Throws Error "<call>: <MPI's text>" unless the code is MPI_SUCCESS.
void check(int code, const char* call);

/// Ends the job on all ranks; without Open MPI's words about MPI_Abort where it is Open MPI.
void abort_job(int exit_code);

}  // namespace lockstep::comm::mpi
