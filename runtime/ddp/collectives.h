// What ranks do together with tensors, outside DistributedDataParallel: metrics, flags, statistics.
//
//   auto correct = torch::tensor(hits);  // of this rank's part of the test set
//   lockstep::all_reduce(world, correct);
//
// All ranks make the same calls in the same order, with tensors of the same type, shape and device; a job
// whose ranks do not is ended with a line that names what two of them asked for. `label` is what that line
// calls the tensor ("accuracy"), and is part of what must be the same.
//
// Tensors lie on the CPU or on a CUDA device (over NCCL; docs/users/gpus.md), contiguous or not, of any
// number of dimensions and elements, also none. They are taken as values: autograd does not see what is done
// to them. A function whose name ends in _async returns at once; until TensorWork::wait() has returned, its
// tensor must be neither read nor written.
//
// Errors: UsageError naming the tensor, its type and what to do where it cannot be taken (undefined, sparse,
// expanded, an element type that cannot be reduced so); Error where communication failed.
//
// Threads: any one thread, but the order of calls must be the same on all ranks: let the training thread do
// it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/comm/world.h"

namespace lockstep {

enum class ReduceOp : std::uint8_t {
  sum,   ///< not of unsigned bytes, which overflow
  mean,  ///< the sum divided by the number of ranks; floating-point types only
  max,   ///< a NaN of any rank stays (on the CPU)
  min,
};

/// An operation under way. It keeps its tensors alive until it has ended, also when it is itself gone before.
/// Wait for it: without wait() a tensor that is not contiguous, or a mean on a GPU, does not get its result.
class [[nodiscard]] TensorWork {
 public:
  /// Blocks until it has ended, and gives the result. On a CUDA device it blocks until all ranks have asked,
  /// and then makes the calling thread's stream wait for the rest. May be called again. Throws Error naming
  /// the operation, the rank and the node where it failed.
  torch::Tensor wait();
  /// Whether wait() would return at once. Never blocks.
  bool done() const;

  struct State;
  explicit TensorWork(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Reduces `tensor` over all ranks, in place: every rank has the result. Element types: float, double,
/// bfloat16, half (added up as float on the CPU, and rounded once), int32, int64; for max and min also uint8.
void all_reduce(World& world, const torch::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                std::string_view label = "a tensor");
TensorWork all_reduce_async(World& world, const torch::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                            std::string_view label = "a tensor");

/// Overwrites `tensor` with that of rank `root`. Any element type.
void broadcast(World& world, const torch::Tensor& tensor, int root = 0, std::string_view label = "a tensor");
TensorWork broadcast_async(World& world, const torch::Tensor& tensor, int root = 0,
                           std::string_view label = "a tensor");

/// Every rank's `tensor`, in rank order, in a tensor with a dimension of size() before those of `tensor`. Any
/// element type.
torch::Tensor all_gather(World& world, const torch::Tensor& tensor, std::string_view label = "a tensor");
TensorWork all_gather_async(World& world, const torch::Tensor& tensor, std::string_view label = "a tensor");

/// Returns when all ranks have called it; the asynchronous one's work ends then, and gives no tensor.
void barrier(World& world, std::string_view label = "all ranks");
TensorWork barrier_async(World& world, std::string_view label = "all ranks");

}  // namespace lockstep
