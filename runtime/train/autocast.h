// Mixed precision: within an Autocast, LibTorch runs matrix products and convolutions in a half type, and
// operations that need float's range (sums, norms, losses) in float. Parameters and gradients stay float.
//
//   torch::Tensor loss;
//   {
//     const lockstep::Autocast autocast(torch::kCPU);  // bfloat16
//     loss = loss_sum(ddp(batch.inputs), batch.targets);
//   }
//   ddp.backward(loss, tokens);  // outside: backward runs in the types that forward chose
//
// bfloat16 has float's range and needs no loss scaling. With half (CUDA) use GradScaler.
//
// Threads: applies to the calling thread; end the scope on the same thread.
#pragma once

#include <torch/torch.h>

namespace lockstep {

class [[nodiscard]] Autocast {
 public:
  /// `device` is CPU, CUDA, or with LibTorch 2.x a backend that was added to it. Throws UsageError for another device, for a type that is neither bfloat16 nor
  /// half, and for half on the CPU. With enabled = false autocast is off within the scope.
  explicit Autocast(torch::DeviceType device, torch::ScalarType type = torch::kBFloat16, bool enabled = true);
  /// Restores what was set before. The outermost scope drops the casted copies of the parameters.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_;
  torch::ScalarType type_before_;
};

}  // namespace lockstep
