// Tools that look for mistakes in a model or a step. They run the model slowly: use them before training, or when
// something is wrong. Only one of them works at a time.
//
// check_model() looks at a model for common mistakes, before training, with one forward:
//
//   const auto found = lockstep::check_model(*model, [&] { return loss_of(model(batch.images), batch.labels); });
//   fmt::print("{}", found.text());
//
// check_loss() ends a training whose loss is infinite or not a number.
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
// thread starts. Only find_largest_cap() communicates: call the others on one rank or on all, and not through
// DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/ddp/options.h"

namespace lockstep {

/// Runs forward once and looks at its operations and its graph. The function returns the loss of a small batch;
/// within it use Autocast as in training. The model should be in training mode. Parameters, gradients, buffers and
/// random numbers stay as they were. `options`: those for DistributedDataParallel. Throws UsageError if the loss does not
/// depend on any parameter.
ModelFindings check_model(const torch::nn::Module& module, const std::function<torch::Tensor()>& forward,
                          const DistributedDataParallelOptions& options = {});

/// A module, and what activation_checkpoint() would do for it.
struct CheckpointCandidate {
  std::string module{};
  std::uint64_t saved_bytes = 0;  ///< of the results kept between forward and backward
  double recompute_ms = 0;        ///< in each backward
  bool suggested = false;
};

/// Which modules to recompute so that the results kept between forward and backward need at most `budget_bytes`: those
/// that save most for their time, until it fits. Runs forward once, as check_model() does. The table has the module's
/// children, those of a Sequential or ModuleList one by one, largest saving first. Operations without parameters count for
/// the module that ran before them.
std::vector<CheckpointCandidate> suggest_checkpoints(const torch::nn::Module& module,
                                                     const std::function<torch::Tensor()>& forward,
                                                     std::uint64_t budget_bytes);

/// A line for each: "* blocks.3   12.0 MiB   1.93 ms"; a star stands before those suggested.
std::string to_text(const std::vector<CheckpointCandidate>& candidates);

/// Throws Error that names the step and this rank if the loss is not finite.
void check_loss(const World& world, double loss, std::int64_t step);

namespace ddp {
class OperationObserver;
struct Operation;
}  // namespace ddp

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
  void see(const ddp::Operation& operation);

  torch::DeviceType device_;
  std::map<std::string, int> calls_;
  std::unique_ptr<ddp::OperationObserver> observer_;
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

struct CapSearch {
  std::uint64_t begin = 512;  ///< this one must fit
  std::uint64_t end = std::uint64_t{1} << 20U;
  /// Of each rank's memory, beyond what it uses now; 0: on a CPU the rank's share of what the node or the job's cgroup
  /// has left, on a GPU what it has left.
  std::uint64_t limit_bytes = 0;
  double reserve = 0.15;  ///< of the limit, for the optimizer's state and the loader
};

/// The largest cap, within 5 %, whose micro-batch fits into the memory of every rank: memory_warm_up() with caps that grow
/// at most as far as the memory certainly suffices. `loss` makes a batch of `cap` tokens. Attention, whose memory grows with
/// the square of the longest sample, is allowed for. All ranks call it, try the same caps and get the same result, so the
/// model may communicate. Throws Error if `begin` does not fit, and what `loss` throws for another reason than memory.
std::uint64_t find_largest_cap(World& world, const torch::nn::Module& module,
                               const std::function<torch::Tensor(std::uint64_t cap)>& loss,
                               const CapSearch& search = {});

}  // namespace lockstep
