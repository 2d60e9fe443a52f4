// The size of buckets that leaves the least communication after backward's end. Large buckets save latency,
// small ones leave earlier; which matters more depends on the network and on when gradients are ready, and
// both are measured. A transfer of n bytes is taken to last latency + n × time per byte, and transfers to run
// one after the other beside backward.
//
// Threads: the functions are safe from any; BucketTuner is the training thread's.
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

/// The line of least squares through measured transfers; neither part is negative.
TransferCost fit_cost(std::span<const Transfer> transfers);

struct BucketSizes {
  std::size_t first_bytes = 0;
  std::size_t cap_bytes = 0;
  bool operator==(const BucketSizes&) const = default;
};

/// What one backward looks like without communication.
struct Backward {
  std::vector<ParameterSize> parameters;
  std::vector<std::size_t> order;       ///< in which their gradients arrive
  std::vector<std::uint64_t> ready_ns;  ///< of each parameter, since backward's begin
  std::uint64_t length_ns = 0;
};

/// How long communication goes on after backward's end.
double predict_exposed_ns(const Backward& backward, const TransferCost& cost, const BucketSizes& sizes);

/// The sizes with the least exposed time; `current` where nothing is better by a hundredth of a transfer.
BucketSizes choose_bucket_sizes(const Backward& backward, const TransferCost& cost,
                                const BucketSizes& current);

/// Collects a few steps, and then lets rank 0 choose for everyone.
class BucketTuner {
 public:
  /// Measures the latency; all ranks call it.
  explicit BucketTuner(comm::Communicator& communicator);

  /// A step in which every gradient arrived on this rank, without `order`, which follows from `ready_ns`.
  void add(Backward backward, std::span<const Transfer> transfers);

  /// After each step, on all ranks: rank 0's choice, once it has seen enough.
  std::optional<BucketSizes> agree(const BucketSizes& current);

 private:
  BucketSizes choose(const BucketSizes& current);

  comm::Communicator& communicator_;
  std::vector<Backward> steps_;
  std::vector<Transfer> transfers_;
};

}  // namespace lockstep::ddp
