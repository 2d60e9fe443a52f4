// Your own way of summing gradients: compressed, in another number of bits, over another network. What
// PyTorch calls a communication hook.
//
//   class Mean : public lockstep::CommHook {
//     lockstep::CommFuture start(lockstep::GradBucket& bucket, lockstep::comm::Communicator& ranks) override
//     {
//       return {{ranks.all_reduce(bucket.memory(), "mean", {.op = lockstep::comm::ReduceOp::average})}, {}};
//     }
//   };
//   ddp.register_comm_hook(std::make_shared<Mean>());
//
// A hook takes over the division: what it leaves in the bucket is taken as the mean over the ranks.
// (Averaging by tokens then goes on from there.)
//
// Threads: the thread that runs backward, and the training thread after it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep {

/// A bucket whose gradients are all there.
class GradBucket {
 public:
  GradBucket(std::size_t index, bool is_last, comm::Buffer memory, torch::Tensor buffer,
             std::vector<torch::Tensor> gradients, std::vector<torch::Tensor> parameters)
      : index_(index),
        is_last_(is_last),
        memory_(memory),
        buffer_(std::move(buffer)),
        gradients_(std::move(gradients)),
        parameters_(std::move(parameters)) {}

  /// Its number, in the order in which buckets leave. The same bucket holds the same parameters in each step,
  /// until buckets_changed().
  std::size_t index() const { return index_; }
  bool is_last() const { return is_last_; }

  /// All gradients in one dimension, complex ones as real numbers in pairs, with zeros between them up to the
  /// next multiple of 64 bytes.
  torch::Tensor& buffer() { return buffer_; }
  /// The same memory, as operations take it.
  comm::Buffer memory() const { return memory_; }
  /// Each parameter's gradient: views of the buffer.
  const std::vector<torch::Tensor>& gradients() const { return gradients_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }

 private:
  std::size_t index_;
  bool is_last_;
  comm::Buffer memory_;
  torch::Tensor buffer_;
  std::vector<torch::Tensor> gradients_;
  std::vector<torch::Tensor> parameters_;
};

/// What is under way for a bucket, and how it goes on. What the operations work on must be held by `then`
/// (captured), or live as long as the hook.
struct CommFuture {
  std::vector<comm::WorkHandle> works;
  /// Called when all works have ended, after backward: writes the result into the bucket, or asks for the
  /// next operations and returns them. Empty: the works leave the result in the bucket.
  std::function<CommFuture()> then;
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  /// Called when the bucket is full, in the middle of backward, in the same order on all ranks: asks for
  /// operations, and never waits.
  virtual CommFuture start(GradBucket& bucket, comm::Communicator& communicator) = 0;

  /// Buckets were laid out anew: whatever was kept for an index is worth nothing now.
  virtual void buckets_changed() {}

  /// From now on gradients are so many times what they were (averaging by tokens, where their number
  /// changes): what is kept from earlier steps must be multiplied by it.
  virtual void gradients_scaled(double /*times*/) {}

  /// The step had no tokens on any rank (averaging by tokens), so what the bucket holds now, which came from
  /// earlier steps only, is not used: what is kept must not count it as sent.
  virtual void result_dropped(GradBucket& /*bucket*/) {}

  /// Whether parameters are given other memory because of this hook, as a sharded optimizer does. Otherwise
  /// DistributedDataParallel takes that for a change of the model.
  virtual bool moves_parameters() const { return false; }

  /// Why this hook does not work inside DistributedDataParallel::join(); empty: it does.
  virtual std::string refuses_join() const { return {}; }
};

}  // namespace lockstep
