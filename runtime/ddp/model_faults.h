// Looks at one forward for mistakes that make training slow or imprecise. DistributedDataParallel does this in its first
// forward if it is asked to, and check_model() (runtime/train/debug.h) before training.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/ddp/operation_observer.h"
#include "runtime/ddp/options.h"

namespace lockstep::ddp {

class FirstForward {
 public:
  /// Observes this thread's operations from now on. Throws UsageError if another OperationObserver exists.
  explicit FirstForward(const torch::nn::Module& module);

  /// `results`: those of the forward, or its loss. `options`: those of DistributedDataParallel.
  ModelFindings findings(const std::vector<torch::Tensor>& results,
                         const DistributedDataParallelOptions& options);

  /// Whether autocast was on in any operation.
  bool autocast() const { return autocast_; }

 private:
  void see(const Operation& operation);
  void see_batch_norm(const Operation& operation);
  void look_at_sizes();
  void look_at_graph(const std::vector<torch::Tensor>& results,
                     const DistributedDataParallelOptions& options);

  const torch::nn::Module& module_;
  std::unordered_map<const void*, std::string> names_;  // of the parameters
  std::map<std::string, int> half_sums_;                // and how often
  ModelFindings findings_;
  bool autocast_ = false;
  OperationObserver observer_;
};

}  // namespace lockstep::ddp
