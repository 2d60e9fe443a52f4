// Collective operations on tensors outside DistributedDataParallel, for metrics, flags and statistics.
//
//   auto correct = torch::tensor(hits);  // of this rank's part of the test set
//   lockstep::all_reduce(world, correct);
//
// All ranks make the same calls in the same order, with tensors of the same type, shape and device. If they
// do not, the job ends with a line that names the calls of two ranks. That line calls the tensor by its
// `label` ("accuracy"), which must be the same on all ranks too.
//
// Tensors are on the CPU or on a CUDA device (over NCCL; docs/users/gpus.md). They may be non-contiguous, and
// have any number of dimensions and elements, including none. Autograd does not record the operations. A
// function whose name ends in _async returns at once; its tensor must not be read or written until wait() of the
// handle has returned. The handle is the communicator's own (runtime/comm/communicator.h).
//
// Errors: UsageError if a tensor cannot be used (undefined, sparse, expanded, an element type without this
// operation), naming the tensor, its type and a remedy; Error if communication failed.
//
// Threads: one thread at a time. The order of calls must be the same on all ranks, so call from the training
// thread.
#pragma once

#include <torch/torch.h>

#include <string_view>

#include "runtime/comm/world.h"

namespace lockstep {

using comm::ReduceOp;

/// A running operation. Its tensors stay alive until it has ended, even if the handle is destroyed earlier. Always call
/// wait(): without it, a tensor that is not contiguous, or an average on a GPU, does not get its result. On a CUDA device
/// wait() blocks only until all ranks have started the operation, and makes the calling thread's stream wait for the
/// rest. It may be called again.
using comm::WorkHandle;

/// Reduces `tensor` over all ranks, in place on every rank. Element types: float, double, bfloat16, half (on
/// the CPU summed as float and rounded once), int32, int64; for max and min also uint8. Operations: sum, average
/// (floating-point types only), max (on the CPU NaN if any rank has one) and min.
void all_reduce(World& world, const torch::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                std::string_view label = "a tensor");
[[nodiscard]] WorkHandle all_reduce_async(World& world, const torch::Tensor& tensor,
                                          ReduceOp op = ReduceOp::sum, std::string_view label = "a tensor");

/// Overwrites `tensor` with the one of rank `root`. Takes any element type.
void broadcast(World& world, const torch::Tensor& tensor, int root = 0, std::string_view label = "a tensor");
[[nodiscard]] WorkHandle broadcast_async(World& world, const torch::Tensor& tensor, int root = 0,
                                         std::string_view label = "a tensor");

/// Returns every rank's `tensor` in rank order, in a tensor with a new first dimension of World::size().
/// Takes any element type.
torch::Tensor all_gather(World& world, const torch::Tensor& tensor, std::string_view label = "a tensor");
/// `all` becomes that tensor, whose elements are there after wait().
[[nodiscard]] WorkHandle all_gather_async(World& world, const torch::Tensor& tensor, torch::Tensor& all,
                                          std::string_view label = "a tensor");

/// Returns when all ranks have called it. The work of barrier_async() ends then.
void barrier(World& world, std::string_view label = "all ranks");
[[nodiscard]] WorkHandle barrier_async(World& world, std::string_view label = "all ranks");

}  // namespace lockstep
