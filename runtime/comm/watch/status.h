// What a rank says that it is doing, and the one line that a job ends with when something is wrong.
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::watch {

/// Where every rank is.
struct Roster {
  std::vector<int> node_of;             ///< by rank
  std::vector<std::string> node_names;  ///< by node

  /// "rank 1 on n1"
  std::string name(int rank) const;
  std::vector<int> ranks_on(int node) const;
};

enum class State : std::uint8_t {
  waits,   ///< for an operation, and does nothing else
  works,   ///< an operation has begun and not ended; the rank's other threads go on
  asked,   ///< an operation was asked for and has not begun; the rank goes on
  idle,    ///< has asked for nothing that has not ended
  left,    ///< has left World
  silent,  ///< gives no answer
  gone,    ///< its process has ended
};

struct Status {
  std::int32_t rank = 0;
  State state = State::silent;
  std::uint64_t number = 0;    ///< the operation's, in the order of asking; idle: how many were asked for
  std::uint64_t lasts_ns = 0;  ///< for how long so far
  std::string operation = {};  ///< that has not ended; idle and left: that it did last
};

/// This process's, from its activity.
Status status_of_this_process(int rank);

/// For messages between ranks (of one architecture, as MPI's are here). unpack_statuses throws Error on what
/// pack has not made.
std::string pack(const std::vector<Status>& statuses);
std::vector<Status> unpack_statuses(std::string_view bytes);

/// An operation took too long on a rank.
struct Overdue {
  std::string operation;
  std::uint64_t seconds = 0;  ///< how long it was given
  Status status;              ///< of the rank that waits for it
};
std::string pack(const Overdue& overdue);
Overdue unpack_overdue(std::string_view bytes);

/// "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s (LOCKSTEP_TIMEOUT): rank 0
/// on n1 waits in the same since 30 s; rank 2 on n2 does not answer (stopped or cut off?)". Ranks that do the
/// same are named together, those that explain most first. `statuses` in any order; the overdue rank's own is
/// left out.
std::string explain_overdue(const Roster& roster, const Overdue& overdue, std::vector<Status> statuses);

/// "rank 2 on n1 is gone (its process ended); rank 0 on n1 is in …"
std::string explain_gone(const Roster& roster, int rank, const Status& mine);

}  // namespace lockstep::comm::watch
