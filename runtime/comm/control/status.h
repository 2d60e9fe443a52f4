// The status that each rank reports, and the line that tells the user why the job ends.
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::control {

/// The node of every rank.
struct Roster {
  std::vector<int> node_of;             ///< by rank
  std::vector<std::string> node_names;  ///< by node

  /// "rank 1 on n1"
  std::string name(int rank) const;
  std::vector<int> ranks_on(int node) const;
};

enum class RankState : std::uint8_t {
  waits,   ///< is blocked in an operation
  works,   ///< an operation runs, and no thread is blocked in it
  asked,   ///< an operation was asked for and has not begun
  idle,    ///< every operation that was asked for has ended
  left,    ///< has left World
  silent,  ///< does not answer
  ended,   ///< its process has ended
};

struct Status {
  std::int32_t rank = 0;
  RankState state = RankState::silent;
  std::uint64_t number = 0;       ///< the operation's, counted from 1; idle: how many were asked for
  std::uint64_t duration_ns = 0;  ///< how long the rank has been in this state
  std::string operation = {};     ///< the oldest that has not ended; idle and left: the last one
};

/// The status of this process, from comm/control/activity.h.
Status status_of_this_process(int rank);

/// For messages between ranks. The unpack functions throw Error for
/// damaged bytes.
std::string pack(const std::vector<Status>& statuses);
std::vector<Status> unpack_statuses(std::string_view bytes);

/// An operation took too long on a rank.
struct Overdue {
  std::string operation;
  std::uint64_t seconds = 0;  ///< the timeout
  Status status;              ///< of the rank that waits for it
};
std::string pack(const Overdue& overdue);
Overdue unpack_overdue(std::string_view bytes);

/// "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s (LOCKSTEP_TIMEOUT): rank 0
/// on n1 has waited in the same operation for 30 s; rank 2 on n2 does not answer (stopped or cut off?)".
/// Ranks that do the same are named together, the likeliest cause first. `statuses` may be in any order and
/// may contain the overdue rank's, which is left out.
std::string explain_overdue(const Roster& roster, const Overdue& overdue, std::vector<Status> statuses);

/// "rank 2 on n1 is gone (its process ended); rank 0 on n1 is in …"
std::string explain_lost_rank(const Roster& roster, int rank, const Status& mine);

/// "rank 2 on n2 has not answered for 10 s (its node lost power, or is cut off); rank 0 on n1 is in …"
std::string explain_unreachable_rank(const Roster& roster, int rank, const Status& mine);

/// Whether the rank waits in or runs an operation, or has asked for one.
bool is_in_operation(RankState state);

}  // namespace lockstep::comm::control
