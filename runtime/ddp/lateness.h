// How much of a step's communication was moving data, and how much was waiting for whom.
//
// On one node a communicator knows when the last rank asked for an operation and which it was. Between nodes
// clocks differ, so ranks exchange durations, not times: all of them leave a reduction together, hence the
// one that was in it for the shortest time came last, and what the others were in it for longer they waited.
// The durations of a step travel during the next one.
//
// Threads: the training thread; all ranks make the same calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

/// One reduction as this rank saw it: monotonic nanoseconds, 0 for what is not known.
struct ReductionTimes {
  std::uint64_t asked_ns = 0;
  std::uint64_t began_ns = 0;
  std::uint64_t all_asked_ns = 0;  ///< when the last rank asked
  std::uint64_t ended_ns = 0;
  int last_rank = -1;  ///< the one that asked last; -1: unknown
};

/// A step's communication.
struct CommShare {
  std::uint64_t transfer_ns = 0;  ///< data moved, beside backward or after it
  std::uint64_t wait_ns = 0;      ///< after its own backward, this rank waited for later ones
  int waited_for = -1;            ///< the rank that was waited for longest; -1: none, or unknown
};

/// For each reduction, in the order of asking, how long this rank was in it: from its asking, or from the end
/// of the one before if that was later, to its end.
std::vector<std::uint64_t> durations_of(std::span<const ReductionTimes> reductions);

/// Says when the last rank asked, and which that was, from everybody's durations (rank by rank). A spread
/// below `latency_ns` tells nothing: nobody is named then.
void place_last_rank(std::span<ReductionTimes> reductions, std::span<const std::uint64_t> durations,
                     int ranks, std::uint64_t latency_ns);

CommShare share_of(std::span<const ReductionTimes> reductions, std::uint64_t backward_ended_ns, int rank);

/// The time of the smallest all-reduce, the best of a few, as the slowest rank sees it. All ranks call it.
std::uint64_t measure_latency(comm::Communicator& communicator);

class Lateness {
 public:
  explicit Lateness(comm::Communicator& communicator) : communicator_(communicator) {}

  /// Before a step's first reduction.
  void begin_step();

  struct Step {
    std::vector<ReductionTimes> reductions;
    std::uint64_t backward_ended_ns = 0;
    CommShare share;
  };
  /// After its last one. Gives the newest step of which everything is known: this one where the clock is
  /// common, otherwise the one before.
  std::optional<Step> end_step(std::vector<ReductionTimes> reductions, std::uint64_t backward_ended_ns);

 private:
  void agree(std::span<const ReductionTimes> reductions);

  comm::Communicator& communicator_;
  bool agreed_ = false;
  bool exchanging_ = false;  // some rank does not know who was last
  std::uint64_t latency_ns_ = 0;
  std::optional<Step> before_;
  std::shared_ptr<std::vector<std::uint64_t>>
      durations_;  // everybody's of the step before; kept by exchange_
  comm::WorkHandle exchange_;
};

}  // namespace lockstep::ddp
