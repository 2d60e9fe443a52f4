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
             std::vector<torch::Tensor> gradients, std::vector<torch::Tensor> parameters,
             std::vector<std::string> names = {})
      : index_(index),
        is_last_(is_last),
        memory_(memory),
        buffer_(std::move(buffer)),
        gradients_(std::move(gradients)),
        parameters_(std::move(parameters)),
        names_(std::move(names)) {}

  /// Its number, in the order in which buckets are reduced. Hooks never receive sparse gradients. A bucket
  /// holds the same parameters in each step, until buckets_changed().
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
  /// The name of each parameter in the model.
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::size_t index_;
  bool is_last_;
  comm::Buffer memory_;
  torch::Tensor buffer_;
  std::vector<torch::Tensor> gradients_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::string> names_;
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

  /// The layout of buckets has changed: drop all state that is kept by bucket index. State of gradients can be kept by
  /// the parameters' names.
  virtual void buckets_changed() {}

  /// The state that steps leave for later ones, for Checkpointer: of this rank, by the parameters' names. A job on other
  /// ranks gives rank r the state of rank r modulo the number of ranks that saved. load() is called before the first
  /// backward. Not needed by a hook that keeps nothing.
  virtual void save(torch::serialize::OutputArchive& /*archive*/) const {}
  virtual void load(torch::serialize::InputArchive& /*archive*/) {}

  /// Called in the first step, before start(), if the model's gradients are averaged by count.
  virtual void averages_by_count() {}

  /// Gradients are larger by this factor from now on, because the count per step changed (averaging by count):
  /// multiply gradients kept from earlier steps by it.
  virtual void gradients_scaled(double /*factor*/) {}

  /// Called if the step had no samples on any rank (averaging by count). The result in the bucket then comes
  /// from earlier steps only and is not used: a hook that keeps gradients for later must keep it.
  virtual void result_dropped(GradBucket& /*bucket*/) {}

  /// Whether result_dropped() does anything. If so, each step on a GPU that averages by count waits for the counts of all
  /// ranks.
  virtual bool uses_result_dropped() const { return true; }

  /// Whether this hook gives parameters other memory, as a sharded optimizer does. Without it,
  /// DistributedDataParallel treats other memory as a change of the model.
  virtual bool moves_parameters() const { return false; }

  /// Why this hook does not work inside DistributedDataParallel::join(); empty if it does.
  virtual std::string refuses_join() const { return {}; }
};

}  // namespace lockstep
