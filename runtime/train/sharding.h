// Which elements of which parameters a rank's optimizer works on. Every bucket of gradients is cut into as
// many equal parts as there are ranks; a rank's part comes to it by reduce-scatter, and the parameters of all
// parts go to all ranks by all-gather, from memory that is laid out like the bucket.
//
// Threads: the training thread, and the one that runs backward while that waits.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/train/optimizer_state.h"

namespace lockstep::train {

/// How `count` elements are cut: as many equal parts as there are ranks, and what is left over, fewer
/// elements than ranks, belongs to the last rank.
struct Parts {
  Parts(std::int64_t count, int ranks) : each(count / ranks), rest_begin(each * ranks), end(count) {}

  std::int64_t each;
  std::int64_t rest_begin;
  std::int64_t end;
};

/// The parameters of a bucket, in its order.
using BucketParameters = std::vector<torch::Tensor>;

/// Sums gradients so that every rank gets its part of each bucket; elsewhere buckets then hold nothing of
/// use. Remembers which parameters lie in which bucket.
class ShardingHook : public CommHook {
 public:
  CommFuture start(GradBucket& bucket, comm::Communicator& communicator) override;
  void buckets_changed() override { next_.clear(); }
  bool moves_parameters() const override { return true; }
  std::string refuses_join() const override {
    return "a rank without data cannot take part in DistributedOptimizer's step(); average by tokens and "
           "call "
           "skip(), or take one of LibTorch's optimizers";
  }

  /// Counts layouts, from 1; 0 before the first synchronised backward.
  std::uint64_t generation() const { return generation_; }
  const std::vector<BucketParameters>& layout() const { return layout_; }
  comm::Communicator& communicator() const { return *communicator_; }

 private:
  std::vector<BucketParameters> next_;  // of the layout that backward is using
  std::vector<BucketParameters> layout_;
  std::uint64_t generation_ = 0;
  comm::Communicator* communicator_ = nullptr;
};

/// One layout: the parameters in flat memory, and this rank's slices of them.
class Shards {
 public:
  /// Moves the parameters into flat memory: they become views of it. Those that `index_of` (by TensorImpl)
  /// does not know stay where they are. `hook` has a layout.
  Shards(const ShardingHook& hook, const std::map<const void*, std::size_t>& index_of);

  struct Slice {
    Span span;
    torch::Tensor parameter;  ///< the whole one
    torch::Tensor elements;   ///< this rank's, in one dimension: what the optimizer updates
  };
  const std::vector<Slice>& slices() const { return slices_; }
  std::vector<Span> spans() const;

  /// Whether the parameter, by its number, is in a bucket.
  bool has(std::size_t parameter) const { return known_.at(parameter); }

  /// Moves parameters that were given other memory (by torch::load()) back here, with their values of now.
  /// Throws UsageError where they have another type or shape.
  void take_parameters_back();

  /// Gives every slice the part of its parameter's gradient that belongs to it, or none.
  void take_gradients();

  /// Sends this rank's elements to all, and gets theirs.
  void gather(comm::Communicator& communicator);

 private:
  std::vector<ddp::FlatBucket> buckets_;
  std::vector<Slice> slices_;
  std::vector<bool> known_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> views_;  // of each parameter on its bucket
};

}  // namespace lockstep::train
