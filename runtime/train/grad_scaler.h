// Loss scaling for training in half (PyTorch's GradScaler): the loss is multiplied by a large factor so that
// small gradients do not vanish in half, and the gradients are divided by it before the optimizer uses them.
// Where a gradient is infinite or not a number, the step is skipped on all ranks and the factor is lowered.
//
//   lockstep::GradScaler scaler(world);
//   …
//     ddp.backward(scaler.scale(loss), tokens);
//     scaler.unscale(optimizer);                        // only if something reads the gradients, as clipping does
//     lockstep::clip_grad_norm(parameters, 1.0);
//     scaler.step(optimizer);
//     scaler.update();
//     optimizer.zero_grad();
//
// Works with LibTorch's optimizers and with DistributedOptimizer, with several of them, and with accumulation:
// call unscale(), step() and update() once per optimizer step, after the synchronised backward.
//
// Threads: the training thread. unscale() and step() communicate: all ranks call them in the same order.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/train/distributed_optimizer.h"

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

struct GradScalerOptions {
  double initial_scale = 65'536;
  double growth_factor = 2;             ///< above 1
  double backoff_factor = 0.5;          ///< above 0 and below 1
  std::int64_t growth_interval = 2000;  ///< good steps in a row before the scale grows
  bool enabled = true;                  ///< false: all calls behave as without a scaler
};

class GradScaler {
 public:
  /// The world must outlive this object; its record shows the scale and the skipped steps. Throws UsageError
  /// for options that make no sense.
  explicit GradScaler(World& world, const GradScalerOptions& options = {});

  /// The loss times the scale. Of a half loss the result is float, because the scale may not fit into half.
  torch::Tensor scale(const torch::Tensor& loss) const;

  /// Divides the optimizer's gradients by the scale, in place, and returns whether they are finite on all
  /// ranks. Throws UsageError if called twice before update(), and for half gradients, which could underflow
  /// here: keep the parameters in float and use Autocast.
  bool unscale(torch::optim::Optimizer& optimizer);
  bool unscale(DistributedOptimizerBase& optimizer);

  /// unscale() if that was not called, then optimizer.step(), unless a rank has a gradient that is not finite.
  /// Returns whether the optimizer made its step. Throws UsageError if called twice before update().
  bool step(torch::optim::Optimizer& optimizer);
  bool step(DistributedOptimizerBase& optimizer);

  /// Ends the optimizer step: lowers the scale if a step was skipped, raises it after growth_interval good
  /// ones. Throws UsageError if no optimizer has been unscaled since the last update().
  void update();

  double current_scale() const { return options_.enabled ? state_.scale : 1; }

  /// For checkpoints. load() throws Error for a scale that is not a positive number.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;  // in a row, since the scale last changed
  };
  void set_state(const State& state);
  struct Unscaled {
    bool finite = true;
    bool stepped = false;
  };

  bool unscale_all(const void* optimizer, const std::vector<torch::Tensor>& gradients, torch::Device device);
  template <typename Optimizer>
  bool step_with(Optimizer& optimizer);

  World& world_;
  GradScalerOptions options_;
  State state_;
  std::map<const void*, Unscaled> unscaled_;  // by optimizer, since the last update()
};

}  // namespace lockstep
