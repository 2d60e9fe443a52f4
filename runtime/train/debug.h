// Tools that look for mistakes in a model or a step. They run the model slowly: use them before training, or when
// something is wrong. Only one of them works at a time.
//
// check_model() looks at a model for common mistakes, before training, with one forward:
//
//   const auto found = lockstep::check_model(*model, [&] { return loss_of(model(batch.images), batch.labels); });
//   fmt::print("{}", found.text());
//
// check_loss() ends a training whose loss is infinite or not a number; first_non_finite() finds the place where the
// first such value was made:
//
//   lockstep::check_loss(world, loss, step, [&] {
//     return lockstep::first_non_finite(*model, [&] {
//       const lockstep::Autocast autocast(torch::kCPU);  // if the training has one
//       loss_of(model(batch.inputs), batch.targets);
//     });
//   });
//
// SyncDetector names the calls of a step that make the program wait for the GPU: reading a number (item()), finding
// non-zero elements, copying to the host. Each of them leaves the GPU without work for a while.
//
//   {
//     const lockstep::SyncDetector detector(torch::kCUDA);
//     … one step …
//     fmt::print("{}\n", detector.text());   // "aten::item (2 times), aten::masked_select (once)"
//   }
//
// Threads: the training thread; SyncDetector applies to the thread that made it and to the backward passes that this
// thread starts. None of them communicates: call them on one rank or on all, and not through DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/world.h"

namespace lockstep {

struct ModelFindings {
  /// Biases that a batch norm right after them subtracts again: they only cost time. Build the layer without
  /// a bias.
  std::vector<std::string> biases_before_batch_norm;
  /// Trained parameters that backward does not reach: unused, or cut off by detach(). DistributedDataParallel
  /// refuses them unless find_unused_parameters is set.
  std::vector<std::string> parameters_without_gradient;
  /// Operations whose result is float although autocast was on in the forward, and how often. Those that need the
  /// range (norms, losses) stay float for good reasons; a matrix product here is a reason to look.
  std::map<std::string, int> float_operations;

  /// A line for each finding; empty without any.
  std::string text() const;
};

/// Runs forward once and looks at its operations and its graph. The function returns the loss of a small batch;
/// within it use Autocast as in training. The model should be in training mode. Parameters, gradients, buffers and
/// random numbers stay as they were. Throws UsageError if the loss does not depend on any parameter.
ModelFindings check_model(const torch::nn::Module& module, const std::function<torch::Tensor()>& forward);

/// Throws Error that names the step and this rank if the loss is not finite. `find` is called only then; its result
/// becomes part of the message.
void check_loss(const World& world, double loss, std::int64_t step,
                const std::function<std::string()>& find = nullptr);

/// Describes where the first value that is infinite or not a number comes from: a parameter or buffer, or the first
/// operation that made one out of finite values, with the module to which its weights belong (or that ran last). For
/// that it runs `forward` once, slowly. `forward` must compute as the training does, with the same Autocast.
/// Buffers and random numbers stay as they were. Says so if it finds nothing.
std::string first_non_finite(const torch::nn::Module& module, const std::function<void()>& forward);

namespace train {
class OperationObserver;
struct Operation;
/// Whether this operation waits for the device of its tensors, if they are on a device of this type.
bool waits_for_device(const std::string& operation, c10::ArrayRef<c10::IValue> inputs,
                      torch::DeviceType type);
}  // namespace train

/// With torch::kCPU it names the calls on tensors in host memory that would wait if the tensors were on a GPU, except
/// copies. Not found: waiting in code that is not LibTorch's, such as cudaStreamSynchronize() or NCCL.
class SyncDetector {
 public:
  /// Throws UsageError if another debug tool that looks at operations is in use.
  explicit SyncDetector(torch::DeviceType device = torch::kCUDA);
  ~SyncDetector();
  SyncDetector(const SyncDetector&) = delete;
  SyncDetector& operator=(const SyncDetector&) = delete;

  /// The operations that the program called and that waited, and how often. Call it when the step has ended.
  const std::map<std::string, int>& calls() const { return calls_; }
  /// The same as a line; "no synchronising call" without any.
  std::string text() const;

 private:
  void see(const train::Operation& operation);

  torch::DeviceType device_;
  std::map<std::string, int> calls_;
  std::unique_ptr<train::OperationObserver> observer_;
};

// Runs the largest micro-batch once before step 0, so that a job that does not fit into memory ends in its first
// seconds instead of hours later, and LibTorch's allocator has its largest blocks from the start:
//
//   const auto lengths = data::lengths_from_pack(*pages, "pages");
//   const auto largest = data::largest_micro_batch(data::make_plan(lengths.tokens, plan), lengths.tokens);
//   lockstep::memory_warm_up(*model, [&] { return loss_of(model, batch_of(largest)); });

/// Runs forward and backward. `loss` makes a batch of the largest shape, calls the model itself (not
/// DistributedDataParallel) and returns the loss. Parameters, gradients, buffers, random numbers and the state of
/// DistributedDataParallel stay as they were. Memory for the optimizer's state is not included. Throws Error if memory
/// does not suffice, and UsageError if the loss does not depend on a parameter.
void memory_warm_up(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss);

}  // namespace lockstep
