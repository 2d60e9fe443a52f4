// Divides the elements of parameters among the ranks' optimizers. Every bucket of gradients is cut into as
// many equal parts as there are ranks. A reduce-scatter gives each rank its part. The parameters lie in
// memory with the same layout as the bucket, and an all-gather sends all parts to all ranks.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/train/partition.h"

namespace lockstep::train {

/// The parameters of a bucket, in its order.
using BucketParameters = std::vector<torch::Tensor>;

/// Averages gradients so that every rank gets its part of each bucket; the rest of the bucket is then undefined.
/// Records the layout of parameters in buckets.
class ShardingHook : public CommHook {
 public:
  CommFuture start(GradBucket& bucket, comm::Communicator& communicator) override;
  void buckets_changed() override { next_.clear(); }
  bool moves_parameters() const override { return true; }
  std::string refuses_join() const override {
    return "a rank without data cannot take part in DistributedOptimizer's step(); average by count and call skip(), or use one of LibTorch's optimizers";
  }

  /// The number of layouts so far; 0 before the first synchronised backward.
  std::uint64_t generation() const { return generation_; }
  const std::vector<BucketParameters>& layout() const { return layout_; }
  comm::Communicator& communicator() const { return *communicator_; }

 private:
  std::vector<BucketParameters> next_;  // the layout of the current backward, as far as known
  std::vector<BucketParameters> layout_;
  std::uint64_t generation_ = 0;
  comm::Communicator* communicator_ = nullptr;
};

/// One layout: the parameters in flat memory, and this rank's slices of them.
class Shards {
 public:
  /// Moves the parameters to flat memory: they become views of it. Parameters that are not in `index_of` (by
  /// TensorImpl) stay in their memory. `hook` must have a layout.
  Shards(const ShardingHook& hook, const std::map<const void*, std::size_t>& index_of);

  struct Slice {
    Span span;
    torch::Tensor parameter;  ///< the whole parameter
    torch::Tensor elements;   ///< this rank's elements in one dimension, which the optimizer updates
  };
  /// By parameter, as the partition has them.
  const std::vector<Slice>& slices() const { return slices_; }
  const Partition& partition() const { return partition_; }

  /// Whether the parameter with this index is in a bucket.
  bool has(std::size_t parameter) const { return views_.contains(parameter); }

  /// Moves parameters that were given other memory (by torch::load()) back, with their current values. Throws
  /// UsageError if their type or shape has changed.
  void take_parameters_back();

  /// Gives every slice its part of the parameter's gradient, or none.
  void take_gradients();

  struct Moved {
    std::uint64_t bytes = 0;
    std::uint64_t ns = 0;
  };
  /// Sends this rank's elements to all ranks, and receives theirs. Returns the bytes of all, and the time; no time on a device.
  Moved gather(comm::Communicator& communicator);

 private:
  std::vector<ddp::FlatBucket> buckets_;
  Partition partition_;
  std::vector<Slice> slices_;
  std::map<std::size_t, std::pair<torch::Tensor, torch::Tensor>>
      views_;  // each parameter and its view of the bucket
};

}  // namespace lockstep::train
