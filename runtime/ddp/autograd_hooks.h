// Hooks into autograd that report the progress of backward. They use only API that LibTorch 1.13 and 2.x
// share.
//
// Threads: hooks run in the thread that runs that part of backward: for the CPU the thread that called
// backward, for a CUDA device the device's thread.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/torch_version.h"

namespace lockstep::ddp {

/// The nodes that add to the parameters' .grad. Autograd itself holds them weakly.
std::vector<torch_compat::NodeHandle> accumulators_of(const std::vector<torch::Tensor>& parameters);

/// Calls a function with a parameter's index each time a gradient has been added to its .grad. That happens
/// once per backward, even if forward uses the parameter several times, and once more for each inner backward
/// (reentrant activation checkpointing) that reaches the parameter.
class GradientHooks {
 public:
  /// on_gradient gets the index of the accumulator.
  GradientHooks(std::vector<torch_compat::NodeHandle> accumulators,
                std::function<void(std::size_t)> on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  const std::vector<torch_compat::NodeHandle>& accumulators() const { return accumulators_; }

  /// For each parameter, whether backward from the outputs would reach it. Parameters inside reentrant
  /// checkpoints are not found.
  std::vector<bool> reached_from(const std::vector<torch::Tensor>& outputs) const;

 private:
  std::vector<torch_compat::NodeHandle> accumulators_;
  std::vector<std::uintptr_t> hooks_;
};

/// Calls a function when a backward reaches an output, once for each output. The call runs in the outputs'
/// graph task, which is the outermost one, even if other backwards run inside it later. Ignores leaves.
void call_when_reached(const std::vector<torch::Tensor>& outputs, const std::function<void()>& reached);

/// Called inside a backward: calls a function when the current graph task has ended.
void call_at_end_of_backward(std::function<void()> ended);

}  // namespace lockstep::ddp
