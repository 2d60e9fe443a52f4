// Finds out why a job hangs, and ends it. MPI cannot say which rank has ended or what a rank is doing. So
// each rank has a thread that is connected to other ranks (comm/control/tree.h) and sleeps until something is
// wrong:
//
// - A rank's process ends: the connection closes, and the job ends at once.
// - An operation takes too long on some rank: rank 0 asks every rank what it is doing and prints one line for
//   the whole job. Then the job ends (comm/failure.h).
// If rank 0 itself is stopped, cut off or has ended, another rank prints what it knows.
//
// Threads: made and destroyed by the main thread; its functions are safe from any.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/comm/control/tree.h"

namespace lockstep::comm {

class ControlChannel {
 public:
  /// All ranks call it together. Returns null for one rank alone, under LOCKSTEP_WATCH=off, and if the ranks
  /// cannot connect to each other; if only the nodes cannot, each node has its own channel. Rank 0 prints the
  /// reason. Throws UsageError for any other value of LOCKSTEP_WATCH, and whatever `all_gather` throws.
  static std::unique_ptr<ControlChannel> start(const RankInfo& place, const control::AllGather& all_gather);
  /// Tells the other ranks that this one leaves, so that its end is not an error.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// The channel of this process; null if there is none, and in a process that the rank has forked.
  static ControlChannel* current();

  /// An operation took longer than `timeout` on this rank. The channel ends the job soon after.
  void report_overdue(const std::string& operation, std::chrono::seconds timeout);

  /// The job must end with this line, or with another rank's line about the same failure. The channel ends it
  /// soon after.
  void report_failure(const std::string& line);

  /// Sends a text to rank 0, which keeps the last one of each rank: what it must know although no operation of the
  /// communicator runs.
  void tell_rank_0(const std::string& text);
  /// On rank 0: the last text of that rank; empty if there is none.
  std::string last_text_of(int rank);

  /// This rank ends the job and has printed why. Returns when the other ranks know, or after 0.3 s.
  void announce_end(int exit_code);

 private:
  class Thread;
  explicit ControlChannel(control::Tree tree);
  std::unique_ptr<Thread> thread_;
};

}  // namespace lockstep::comm
