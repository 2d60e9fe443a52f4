// Finds the bucket sizes that leave the shortest communication after backward's end. Large buckets save
// latency, small ones start earlier. The better choice depends on the network and on the times at which
// gradients are ready; both are measured. The model: a transfer of n bytes lasts latency + n × time per byte,
// and transfers run one after the other, in parallel with backward.
//
// Threads: the functions may be called from any thread; BucketTuner belongs to the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/bucketing.h"

namespace lockstep::ddp {

struct TransferCost {
  double latency_ns = 0;
  double ns_per_byte = 0;
};

struct Transfer {
  std::size_t bytes = 0;
  std::uint64_t ns = 0;
};

/// The least-squares line through measured transfers. Neither parameter is negative.
TransferCost fit_cost(std::span<const Transfer> transfers);

struct BucketSizes {
  std::size_t first_bytes = 0;
  std::size_t cap_bytes = 0;
  bool operator==(const BucketSizes&) const = default;
};

/// The times of one backward without communication.
struct BackwardProfile {
  std::vector<ParameterSize> parameters;
  std::vector<std::size_t> order;       ///< the parameters in the order in which their gradients arrive
  std::vector<std::uint64_t> ready_ns;  ///< for each parameter, since the beginning of backward
  std::uint64_t length_ns = 0;
};

/// How long communication continues after backward's end.
double predict_exposed_ns(const BackwardProfile& backward, const TransferCost& cost,
                          const BucketSizes& sizes);

/// The sizes with the shortest exposed time. Keeps `current` if the gain is less than a hundredth of the time
/// that one transfer of all gradients takes.
BucketSizes choose_bucket_sizes(const BackwardProfile& backward, const TransferCost& cost,
                                const BucketSizes& current);

/// The backwards and transfers of a few steps.
class BackwardSamples {
 public:
  static constexpr std::size_t kSteps = 5;

  /// Adds a step. `order` is left empty: it follows from `ready_ns`.
  void add(BackwardProfile backward, std::span<const Transfer> transfers);
  bool enough() const { return steps_.size() >= kSteps && !transfers_.empty(); }

  /// Has the median of each time, so that one disturbed step does not decide.
  BackwardProfile typical() const;
  /// Of these transfers and `more`.
  TransferCost cost(std::span<const Transfer> more = {}) const;

 private:
  std::vector<BackwardProfile> steps_;
  std::vector<Transfer> transfers_;
};

/// Collects a few steps, then rank 0 chooses for all ranks.
class BucketTuner {
 public:
  /// Measures the latency; all ranks call it.
  explicit BucketTuner(comm::Communicator& communicator);

  /// Add a step only if all of its gradients arrived on this rank.
  BackwardSamples& samples() { return samples_; }

  /// Called after each step, on all ranks. Returns rank 0's choice as soon as that has enough steps.
  std::optional<BucketSizes> choose_together(const BucketSizes& current);

 private:
  comm::Communicator& communicator_;
  Transfer latency_;  // of the smallest operation
  BackwardSamples samples_;
};

}  // namespace lockstep::ddp
