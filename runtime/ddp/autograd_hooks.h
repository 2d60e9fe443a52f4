// Where autograd tells us how far it is. Only API that LibTorch 1.13 and 2.x share.
//
// Threads: what is given here is called in the thread that runs that part of backward: on the CPU the one
// that called backward, on a CUDA device the device's.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/torch_version.h"

namespace lockstep::ddp {

/// The nodes that add to the parameters' .grad; autograd itself holds them weakly.
std::vector<torch_compat::NodeHandle> accumulators_of(const std::vector<torch::Tensor>& parameters);

/// Calls a function with a parameter's index each time a gradient has been added to its .grad. That is once
/// in a backward, also for parameters that forward uses several times, and once more for each backward inside
/// of it (reentrant activation checkpointing) that reaches the parameter.
class GradientHooks {
 public:
  /// The index is that of the accumulator.
  GradientHooks(std::vector<torch_compat::NodeHandle> accumulators,
                std::function<void(std::size_t)> on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  const std::vector<torch_compat::NodeHandle>& accumulators() const { return accumulators_; }

  /// For each parameter whether backward from the outputs would reach it. What reentrant checkpointing hides
  /// is not seen.
  std::vector<bool> reached_from(const std::vector<torch::Tensor>& outputs) const;

 private:
  std::vector<torch_compat::NodeHandle> accumulators_;
  std::vector<std::uintptr_t> hooks_;
};

/// Calls a function when a backward reaches any of the outputs, in the graph task that the outputs belong to:
/// the outermost one, whatever backwards run inside of it later. Once per output; leaves are left out.
void call_when_reached(const std::vector<torch::Tensor>& outputs, const std::function<void()>& reached);

/// From inside a backward: calls a function when the graph task that runs now has ended.
void call_at_end_of_backward(std::function<void()> ended);

}  // namespace lockstep::ddp
