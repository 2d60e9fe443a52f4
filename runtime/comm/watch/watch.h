// Who watches over the ranks of a job, beside MPI: a thread on each rank, asleep while all is well, with
// connections to the others (comm/watch/tree.h). It notices at once when a rank's process ends; and when an
// operation takes too long on some rank it asks every rank what it is doing, and one of them prints one line
// that says so for the whole job. Then the job is ended (comm/failure.h).
//
// Rank 0 collects and prints. Where it cannot, since it is itself stopped, cut off or gone, others print what
// they know.
//
// Threads: made and destroyed by the main thread; its functions are safe from any.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/comm/watch/tree.h"

namespace lockstep::comm {

class Watch {
 public:
  /// All ranks call it together. Null where there is one rank only, or where LOCKSTEP_WATCH=off; null, or a
  /// watch over this node only, where there can be no connections, and rank 0 says so once. Throws UsageError
  /// for another LOCKSTEP_WATCH, and what `all_gather` does.
  static std::unique_ptr<Watch> start(const Place& place, const watch::AllGather& all_gather);
  /// Says goodbye: what happens to the others is no longer this rank's business, nor the other way round.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// The one of this process; null where there is none, and in a process that the rank has forked.
  static Watch* current();

  /// An operation took too long here. The watch ends the job, soon.
  void report_overdue(const std::string& operation, std::chrono::seconds given);

  /// The job is to end with this line, or with the like of it from another rank; the watch does so, soon.
  void report_line(const std::string& line);

  /// This rank ends the job and has said why. Returns when the others have been told, or after 0.3 s.
  void tell_end(int exit_code);

 private:
  class Thread;
  explicit Watch(watch::Tree tree);
  std::unique_ptr<Thread> thread_;
};

}  // namespace lockstep::comm
