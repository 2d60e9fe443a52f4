// Divides a step's communication into moving data and waiting for another rank, and names that rank.
//
// On one node the communicator knows which rank started an operation last, and when. Between nodes clocks
// differ, so ranks exchange durations instead of times. All ranks leave a reduction together. So the rank
// that was in it for the shortest time came last, and the others waited for the difference. The durations of
// a step are exchanged during the next one.
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

/// The times of one reduction on this rank, in monotonic nanoseconds; 0 if not known.
struct ReductionTimes {
  std::uint64_t asked_ns = 0;
  std::uint64_t began_ns = 0;
  std::uint64_t all_asked_ns = 0;  ///< when the last rank started it
  std::uint64_t ended_ns = 0;
  int late_rank = -1;  ///< the rank that started it last; -1: unknown
};

/// A duration that is not known, for the comparison of ranks. It is longer than an hour.
inline constexpr std::uint64_t kUnknownDuration = (std::uint64_t{1} << 42U) - 1;

/// A step's communication.
struct CommShare {
  std::uint64_t transfer_ns = 0;  ///< data moved, during backward or after it
  std::uint64_t wait_ns = 0;      ///< after its own backward, this rank waited for later ranks
  int late_rank = -1;             ///< the rank that it waited for longest; -1: none, or unknown
};

/// For each reduction, in the order of starting, how long this rank was in it. A duration begins when this
/// rank started the reduction, or when the previous one ended if that was later.
std::vector<std::uint64_t> durations_of(std::span<const ReductionTimes> reductions);

/// How long the ranks were in a reduction.
struct DurationRange {
  std::uint64_t shortest_ns = 0;
  int late_rank = 0;  ///< the first rank with the shortest duration
  std::uint64_t longest_ns = 0;
};

/// Sets all_asked_ns and late_rank from the durations of all ranks. Names no rank if the durations differ by less than
/// `latency_ns`.
void place_late_rank(std::span<ReductionTimes> reductions, std::span<const DurationRange> durations,
                     std::uint64_t latency_ns);

CommShare share_of(std::span<const ReductionTimes> reductions, std::uint64_t backward_ended_ns, int rank);

/// The time of the smallest all-reduce: the best of a few on each rank, and of those the slowest rank's. All
/// ranks call it.
std::uint64_t measure_latency(comm::Communicator& communicator);

class Lateness {
 public:
  explicit Lateness(comm::Communicator& communicator) : communicator_(communicator) {}

  /// The durations of the previous step's reductions that the ranks must compare now (StepMessage); empty if they share
  /// a clock.
  std::vector<std::uint64_t> to_compare() const;

  struct StepTimes {
    std::vector<ReductionTimes> reductions;
    std::uint64_t backward_ended_ns = 0;
    CommShare share;
  };
  /// Called after a step's last reduction; `compared`: the ranges of what to_compare() gave. Returns the newest step whose times are all known: this step if
  /// the ranks share a clock, otherwise the previous one.
  std::optional<StepTimes> end_step(std::vector<ReductionTimes> reductions, std::uint64_t backward_ended_ns,
                                    std::span<const DurationRange> compared);

  /// For a device, whose times are known later: compares a step whose durations all ranks have exchanged. Returns nullopt
  /// if a rank does not know one.
  std::optional<StepTimes> compare(StepTimes step, std::span<const DurationRange> compared) const;
  /// Called once before compare(), on all ranks.
  void measure() { latency_ns_ = measure_latency(communicator_); }

 private:
  void compare_clocks(std::span<const ReductionTimes> reductions);

  comm::Communicator& communicator_;
  bool clocks_compared_ = false;
  bool exchanging_ = false;  // some rank does not know which rank was last
  std::uint64_t latency_ns_ = 0;
  std::optional<StepTimes> previous_;
};

}  // namespace lockstep::ddp
