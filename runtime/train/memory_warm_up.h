// Runs the largest micro-batch once before step 0, so that a job that does not fit into memory ends in its first
// seconds instead of hours later, and LibTorch's allocator has its largest blocks from the start:
//
//   const auto lengths = data::lengths_from_pack(*pages, "pages");
//   const auto largest = data::largest_micro_batch(data::make_plan(lengths.tokens, plan), lengths.tokens);
//   lockstep::memory_warm_up(*model, [&] { return loss_of(model, batch_of(largest)); });
//
// Threads: the training thread. It does not communicate; it may be called before or after DistributedDataParallel is
// constructed.
#pragma once

#include <torch/torch.h>

#include <functional>

namespace lockstep {

/// Runs forward and backward. `loss` makes a batch of the largest shape, calls the model itself (not
/// DistributedDataParallel) and returns the loss. Parameters, gradients, buffers, random numbers and the state of
/// DistributedDataParallel stay as they were. Memory for the optimizer's state is not included. Throws Error if memory
/// does not suffice, and UsageError if the loss does not depend on a parameter.
void memory_warm_up(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss);

}  // namespace lockstep
