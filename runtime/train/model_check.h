// Looks at a model for common mistakes, before training, with one forward:
//
//   const auto found = lockstep::check_model(*model, [&] { return loss_of(model(batch.images), batch.labels); });
//   fmt::print("{}", found.text());
//
// Threads: the training thread. It does not communicate: call it on one rank or on all, and not through
// DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

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

}  // namespace lockstep
