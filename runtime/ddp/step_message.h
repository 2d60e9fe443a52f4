// What the ranks tell each other in a synchronised backward, in one small operation: it starts before the first bucket,
// and its size depends on the number of buckets, not of ranks. Several may be on their way, so that a rank can receive a
// message a step later, without waiting.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/gradient_average.h"
#include "runtime/ddp/lateness.h"

namespace lockstep::ddp {

/// The numbers of a rank.
struct StepReport {
  RankAverage average = {};
  /// Durations of the previous step's reductions, in nanoseconds; all ranks give equally many.
  std::vector<std::uint64_t> durations = {};
};

/// The numbers of all ranks together.
struct StepSummary {
  JobAverage average;
  std::vector<DurationRange> durations;
};

class StepMessage {
 public:
  explicit StepMessage(comm::Communicator& communicator) : communicator_(communicator) {}

  enum class Decide : std::uint8_t {
    at_once,   ///< before any later operation runs, on the thread that completes the message
    received,  ///< in receive()
  };

  /// Starts the exchange; `decide` is called with its result. All ranks call it.
  void send(const StepReport& report, std::function<void(const JobAverage&)> decide,
            Decide when = Decide::at_once);

  /// Messages that were sent and not received.
  std::size_t pending() const { return pending_.size(); }
  /// The sum of all ranks' counts in the newest of them. Waits until all ranks have sent it.
  std::int64_t newest_count() const;
  /// Receives the oldest of them. Waits until all ranks have sent it.
  StepSummary receive();

 private:
  struct Pending {
    std::shared_ptr<std::vector<std::int64_t>> numbers;  // kept by the operation
    comm::WorkHandle work;
    std::function<void(const JobAverage&)> decide;  // none if it is called at once
  };

  comm::Communicator& communicator_;
  std::deque<Pending> pending_;
};

/// A signal that asks the whole job to stop. It travels with the messages of the process's models, and all ranks get
/// the largest one.
struct StopRequest {
  static inline std::atomic<int> mine = 0;  ///< 0: none; a signal handler may set it
  static inline int agreed = 0;
  static inline std::uint64_t messages = 0;  ///< that were received
};

}  // namespace lockstep::ddp
