// What the ranks tell each other in a synchronised backward, in one small operation: it starts before the first bucket,
// and its size depends on the number of buckets, not of ranks.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <atomic>
#include <cstdint>
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
  /// Of the parameters; it must be the same on all ranks.
  std::uint64_t fingerprint = 0;
  /// Durations of the previous step's reductions, in nanoseconds; all ranks give equally many.
  std::vector<std::uint64_t> durations = {};
};

/// The numbers of all ranks together.
struct StepSummary {
  JobAverage average;
  bool fingerprints_differ = false;
  std::vector<DurationRange> durations;
};

class StepMessage {
 public:
  explicit StepMessage(comm::Communicator& communicator) : communicator_(communicator) {}

  /// Starts the exchange. `decide` is called before any later operation runs, on the communicator's thread. All ranks
  /// call it.
  void send(const StepReport& report, std::function<void(const JobAverage&)> decide);

  bool sent() const { return work_ != nullptr; }
  /// Waits until all ranks have sent it.
  void wait() { work_->wait(); }
  /// Waits, and ends the exchange.
  StepSummary receive();

 private:
  comm::Communicator& communicator_;
  std::shared_ptr<std::vector<std::int64_t>> numbers_;  // kept by the operation
  comm::WorkHandle work_;
};

/// A signal that asks the whole job to stop. It travels with the messages of the process's models, and all ranks get
/// the largest one.
struct StopRequest {
  static inline std::atomic<int> mine = 0;  ///< 0: none; a signal handler may set it
  static inline int agreed = 0;
  static inline std::uint64_t messages = 0;  ///< that were received
};

}  // namespace lockstep::ddp
