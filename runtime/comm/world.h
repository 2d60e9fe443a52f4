// The job as one rank sees it: which rank this is, how to talk to the others, and the timer of its steps. The
// first thing that main makes, and the last that goes:
//
//   int main(int argc, char** argv) {
//     lockstep::World world(argc, argv);
//     …
//   }
//
// Started by srun (PMIx) or mpirun it joins the job over MPI; started by hand it is one rank and MPI is not
// touched. It applies the settings that LibTorch leaves to chance (runtime/train/settings.h), and rank 0
// prints them in a line.
//
// An exception that leaves main, or World's block, on one rank ends the job on all of them, with a line that
// names the rank and the node; nobody waits for a rank that is gone. An operation that does not end within
// LOCKSTEP_TIMEOUT seconds (600) does the same.
//
// Environment: LOCKSTEP_CPUS, LOCKSTEP_MALLOC=off, LOCKSTEP_TIMEOUT, LOCKSTEP_WATCH=off, OMP_NUM_THREADS.
//
// Threads: made and destroyed by the main thread; the const members are safe from any.
#pragma once

#include <memory>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/profile/step_timer.h"

namespace lockstep {

class World {
 public:
  /// Throws UsageError where the launcher's way of starting ranks cannot work (srun without PMIx), Error
  /// where MPI cannot do what is needed.
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place().rank; }
  int size() const { return place().size; }
  int local_rank() const { return place().local_rank; }
  int local_size() const { return place().local_size; }
  int node() const { return place().node; }
  int nodes() const { return place().nodes; }
  const std::string& node_name() const { return place().node_name; }
  const comm::Place& place() const;

  comm::Communicator& communicator();

  /// For the memory of a GPU, over NCCL (comm/nccl/communicator.h), beside the one above, which stays for
  /// what lies in host memory. Made at the first call, which all ranks make together, each with a device of
  /// its own. Throws UsageError, naming rank and node, where a rank has no such device or two share one, and
  /// in a build without NCCL.
  comm::Communicator& communicator_of_device(int device);
  profile::StepTimer& timer();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
