#include "runtime/train/fused_optimizer.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>

#include "common/error.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/torch_version.h"
#include "runtime/train/fused_device.h"
#include "runtime/train/fused_kernels.h"

namespace lockstep {
namespace {

using torch::Tensor;

constexpr std::int64_t kGrain = 1 << 15;  // elements that are worth a thread

// LibTorch's kernels for devices also compute half types.
void check(const Tensor& parameter, const char* optimizer) {
  const auto type = parameter.scalar_type();
  const bool known_type =
      parameter.is_cpu() ? type == torch::kFloat || type == torch::kDouble : parameter.is_floating_point();
  if (known_type && parameter.is_non_overlapping_and_dense()) return;
  fail_usage("{}: a parameter of shape {} is of type {} on {}{}; use LibTorch's optimizer for it", optimizer,
             fmt::join(parameter.sizes(), " x "), c10::toString(type), parameter.device().str(),
             parameter.is_non_overlapping_and_dense() ? "" : " and not dense");
}

// The gradient with the parameter's order of elements in memory.
Tensor gradient_of(const Tensor& parameter, const char* optimizer) {
  const Tensor gradient = parameter.grad();
  if (gradient.is_sparse())
    fail_usage("{}: sparse gradients are not supported; use LibTorch's SGD or SparseAdam", optimizer);
  return gradient.strides() == parameter.strides() ? gradient : torch::empty_like(parameter).copy_(gradient);
}

/// Calls work(first, end) for ranges of the parameter's elements, on LibTorch's threads.
template <typename Work>
void for_elements(const Tensor& parameter, const Work& work) {
  at::parallel_for(0, parameter.numel(), kGrain, work);
}

template <typename T>
T* data(const Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

/// Calls update(options, parameter, gradient, state) for each parameter with a gradient. `state` is a
/// reference to the parameter's entry in the optimizer's state; if there is none, `make` makes it.
template <typename Options, typename State, typename Optimizer, typename Make, typename Update>
void for_parameters(Optimizer& optimizer, const char* name, const Make& make, const Update& update) {
  const torch::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<Options&>(group.options());
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      check(parameter, name);
      const Tensor gradient = gradient_of(parameter, name);
      auto& entry = optimizer.state()[torch_compat::optimizer_key(parameter)];
      if (entry == nullptr) entry = make(options, parameter);
      update(options, parameter, gradient, static_cast<State&>(*entry));
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

template <typename Options, typename State>
std::unique_ptr<State> make_adam_state(const Options& options, const Tensor& parameter) {
  auto state = std::make_unique<State>();
  state->step(0);
  state->exp_avg(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
  state->exp_avg_sq(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
  if (options.amsgrad()) state->max_exp_avg_sq(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
  return state;
}

/// The same values with the strides of `parameter`: a state that was loaded may have been saved before the module became
/// channels_last, and the kernels index both by their place in memory.
Tensor like(const Tensor& parameter, const Tensor& values) {
  if (!values.defined() || values.strides() == parameter.strides()) return values;
  return torch::empty_like(parameter, values.options(), torch::MemoryFormat::Preserve).copy_(values);
}

template <typename Options, typename State>
train::AdamStep next_adam_step(const Options& options, const Tensor& parameter, State& state) {
  state.exp_avg(like(parameter, state.exp_avg()));
  state.exp_avg_sq(like(parameter, state.exp_avg_sq()));
  state.max_exp_avg_sq(like(parameter, state.max_exp_avg_sq()));
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(state.step());
  return {.learning_rate = options.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = options.eps(),
          .weight_decay = options.weight_decay(),
          .correction1 = 1 - std::pow(beta1, steps),
          .correction2 = 1 - std::pow(beta2, steps),
          .number = steps};
}

template <typename State>
void add(train::DeviceParameterLists<train::AdamStep>& lists, const train::AdamStep& step,
         const Tensor& parameter, const Tensor& gradient, const State& state) {
  auto& list = lists.with(step, parameter, state.max_exp_avg_sq().defined());
  list.values.push_back(parameter);
  list.gradients.push_back(gradient);
  list.averages.push_back(state.exp_avg());
  list.squares.push_back(state.exp_avg_sq());
  if (state.max_exp_avg_sq().defined()) list.largest_squares.push_back(state.max_exp_avg_sq());
}

template <typename Options, typename State, typename Optimizer>
void adam_step(Optimizer& optimizer, const char* name, bool decoupled) {
  train::DeviceParameterLists<train::AdamStep> on_devices;
  for_parameters<Options, State>(
      optimizer, name, make_adam_state<Options, State>,
      [&](const Options& options, const Tensor& parameter, const Tensor& gradient, State& state) {
        const train::AdamStep step = next_adam_step(options, parameter, state);
        if (!parameter.is_cpu()) return add(on_devices, step, parameter, gradient, state);
        AT_DISPATCH_FLOATING_TYPES(parameter.scalar_type(), "Adam", [&] {
          const train::AdamArrays<scalar_t> arrays{
              data<scalar_t>(parameter), data<scalar_t>(gradient), data<scalar_t>(state.exp_avg()),
              data<scalar_t>(state.exp_avg_sq()), data<scalar_t>(state.max_exp_avg_sq())};
          for_elements(parameter, [&](std::int64_t first, std::int64_t end) {
            train::adam(arrays, first, end, step, decoupled);
          });
        });
      });
  for (const auto& list : on_devices.lists()) train::adam(list, decoupled);
}

template <typename Closure>
Tensor loss_of(const Closure& closure) {
  if (!closure) return {};
  const torch::AutoGradMode with_grad(true);
  return closure();
}

}  // namespace

Tensor FusedSGD::step(LossClosure closure) {
  const Tensor loss = loss_of(closure);
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  train::DeviceParameterLists<train::SgdStep> on_devices;
  for_parameters<Options, State>(
      *this, "FusedSGD", [](const Options&, const Tensor&) { return std::make_unique<State>(); },
      [&](const Options& options, const Tensor& parameter, const Tensor& gradient, State& state) {
        const bool first = !state.momentum_buffer().defined();
        if (first && options.momentum() != 0)
          state.momentum_buffer(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
        state.momentum_buffer(like(parameter, state.momentum_buffer()));
        const train::SgdStep step{.learning_rate = options.lr(),
                                  .momentum = options.momentum(),
                                  .damped = first ? 1 : 1 - options.dampening(),
                                  .weight_decay = options.weight_decay(),
                                  .nesterov = options.nesterov()};
        if (!parameter.is_cpu()) {
          auto& list = on_devices.with(step, parameter, state.momentum_buffer().defined());
          list.values.push_back(parameter);
          list.gradients.push_back(gradient);
          if (state.momentum_buffer().defined()) list.averages.push_back(state.momentum_buffer());
          return;
        }
        AT_DISPATCH_FLOATING_TYPES(parameter.scalar_type(), "FusedSGD", [&] {
          auto* const values = data<scalar_t>(parameter);
          const auto* const gradients = data<scalar_t>(gradient);
          auto* const momenta = data<scalar_t>(state.momentum_buffer());
          for_elements(parameter, [&](std::int64_t begin, std::int64_t end) {
            train::sgd(values, gradients, momenta, begin, end, step);
          });
        });
      });
  for (const auto& list : on_devices.lists()) train::sgd(list);
  return loss;
}

Tensor FusedAdam::step(LossClosure closure) {
  const Tensor loss = loss_of(closure);
  adam_step<torch::optim::AdamOptions, torch::optim::AdamParamState>(*this, "FusedAdam", false);
  return loss;
}

Tensor FusedAdamW::step(LossClosure closure) {
  const Tensor loss = loss_of(closure);
  adam_step<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(*this, "FusedAdamW", true);
  return loss;
}

namespace train {

std::vector<torch::optim::OptimizerParamGroup> decay_groups(
    const torch::nn::Module& module, std::unique_ptr<torch::optim::OptimizerOptions> decayed,
    std::unique_ptr<torch::optim::OptimizerOptions> others) {
  std::vector<Tensor> matrices;
  std::vector<Tensor> vectors;
  for (const auto& parameter : parameters_of(module))
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::move(decayed));
  groups.emplace_back(vectors, std::move(others));
  return groups;
}

}  // namespace train
}  // namespace lockstep
