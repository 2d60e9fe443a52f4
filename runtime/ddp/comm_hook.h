// A communication hook, as in PyTorch: your own way of summing gradients, for example compressed, with fewer
// bits, or over another network.
//
//   class Mean : public lockstep::CommHook {
//     lockstep::CommFuture start(lockstep::GradBucket& bucket, lockstep::comm::Communicator& ranks) override
//     {
//       return {{ranks.all_reduce(bucket.memory(), "mean", {.op = lockstep::comm::ReduceOp::average})}, {}};
//     }
//   };
//   ddp.register_comm_hook(std::make_shared<Mean>());
//
// A hook also divides: it must leave the mean over the ranks in the bucket. (Averaging by count corrects
// that mean afterwards.)
//
// Threads: called from the thread that runs backward, and from the training thread after it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep {

/// A bucket whose gradients are complete.
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

  /// Its number, in the order in which buckets are reduced. A bucket holds the same parameters in each step, until
  /// buckets_changed().
  std::size_t index() const { return index_; }
  bool is_last() const { return is_last_; }

  /// All gradients in one dimension. Each is padded with zeros to a multiple of 64 bytes; a complex number is
  /// two real ones.
  torch::Tensor& buffer() { return buffer_; }
  /// The same memory, as an argument for operations.
  comm::Buffer memory() const { return memory_; }
  /// The gradient of each parameter, as a view of the buffer.
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

/// The running operations of a bucket, and the next stage. The memory of the operations must be captured by
/// `then`, or live as long as the hook.
struct CommFuture {
  std::vector<comm::WorkHandle> works;
  /// Called after backward, when all works have ended: writes the result into the bucket, or starts the next
  /// operations and returns them. Empty if the works themselves leave the result in the bucket.
  std::function<CommFuture()> then;
};

class CommHook {
 public:
  virtual ~CommHook() = default;

  /// Starts operations for a complete bucket, and must not wait. Called during backward, in the same order on
  /// all ranks.
  virtual CommFuture start(GradBucket& bucket, comm::Communicator& communicator) = 0;

  /// The layout of buckets has changed: drop all state that is kept by bucket index.
  virtual void buckets_changed() {}

  /// Whether this hook gives parameters other memory, as a sharded optimizer does. Without it,
  /// DistributedDataParallel treats other memory as a change of the model.
  virtual bool moves_parameters() const { return false; }

  /// Why this hook does not work inside DistributedDataParallel::join(); empty if it does.
  virtual std::string refuses_join() const { return {}; }
};

}  // namespace lockstep
