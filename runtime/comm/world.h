// The job as one rank sees it: its rank, the communicator, and the timer of its steps. Create it first in
// main, so that it is destroyed last:
//
//   int main(int argc, char** argv) {
//     lockstep::World world(argc, argv);
//     …
//   }
//
// Under srun (PMIx) or mpirun the process joins the job over MPI; started by hand it is one rank and does not
// use MPI. World also sets the threads and the heap of the process (runtime/comm/process_settings.h), and
// rank 0 prints the settings in one line.
//
// An exception that leaves main, or the scope of World, on one rank ends the job on all ranks, with a line
// that names the rank and the node. So does an operation that does not end within LOCKSTEP_TIMEOUT seconds
// (600). docs/users/environment.md lists the environment variables that it reads.
//
// Threads: made and destroyed by the main thread; the const members are safe from any.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/comm/communicator.h"
#include "runtime/profile/step_timer.h"

namespace lockstep {

class World {
 public:
  /// Throws UsageError if the ranks cannot find each other (srun without PMIx), Error if MPI lacks what is
  /// needed.
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Ends World and then the process, from any function. All ranks call it together, with no operation in
  /// flight. Writes the record and flushes C streams, but runs no destructors: first wait for a checkpoint and
  /// close your own files.
  [[noreturn]] void exit(int code);

  int rank() const { return place().rank; }
  int size() const { return place().size; }
  int local_rank() const { return place().local_rank; }
  int local_size() const { return place().local_size; }
  int node() const { return place().node; }
  int nodes() const { return place().nodes; }
  const std::string& node_name() const { return place().node_name; }
  const comm::RankInfo& place() const;

  comm::Communicator& communicator();

  /// The communicator for GPU memory, over NCCL (comm/nccl/communicator.h); communicator() remains for host
  /// memory. The first call creates it: all ranks make it together, each with its own device. Throws
  /// UsageError, naming rank and node, if a rank does not have the device or two ranks share one, and in a
  /// build without NCCL.
  comm::Communicator& communicator_of_device(int device);
  profile::StepTimer& timer();

  /// Profiles steps from now on (docs/users/profiler.md). `schedule` as in LOCKSTEP_PROFILE: "wait:10,active:3". All ranks
  /// call it, once. Does nothing if LOCKSTEP_PROFILE is set. Throws UsageError if the schedule is wrong or there is no
  /// folder for the profile.
  void start_profile(std::string_view schedule);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
