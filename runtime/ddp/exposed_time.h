// Predicts how long communication continues after backward's end, from the times at which gradients are ready and from
// measured transfers. Large buckets save latency, small ones start earlier. The model: a transfer of n bytes lasts
// latency + n × time per byte, and transfers run one after the other, in parallel with backward.
//
// Threads: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

/// The backwards and transfers of a few steps.
class BackwardSamples {
 public:
  static constexpr std::size_t kSteps = 5;

  /// Adds a step. `order` is left empty: it follows from `ready_ns`.
  void add(BackwardProfile backward, std::span<const Transfer> transfers);
  bool enough() const { return steps_.size() >= kSteps && !transfers_.empty(); }

  /// Has the median of each time, so that one disturbed step does not decide.
  BackwardProfile typical() const;
  TransferCost cost() const { return fit_cost(transfers_); }

 private:
  std::vector<BackwardProfile> steps_;
  std::vector<Transfer> transfers_;
};

}  // namespace lockstep::ddp
