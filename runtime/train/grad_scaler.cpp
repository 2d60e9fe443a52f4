#include "runtime/train/grad_scaler.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/torch_archive.h"
#include "runtime/torch_version.h"
#include "runtime/train/fused_device.h"

namespace lockstep {
namespace {

torch::DeviceType checked(torch::DeviceType device, torch::ScalarType type) {
  const auto& devices = torch_compat::kAutocastDevices;
  if (std::find(devices.begin(), devices.end(), device) == devices.end())
    fail_usage("Autocast does not support device type {}; use torch::kCPU or torch::kCUDA",
               c10::DeviceTypeName(device));
  const bool supported = type == torch::kBFloat16 || (type == torch::kHalf && device != torch::kCPU);
  if (!supported) {
    fail_usage("Autocast does not support {} on {}; use torch::kBFloat16{}", c10::toString(type),
               c10::DeviceTypeName(device), device != torch::kCPU ? " or torch::kHalf" : "");
  }
  return device;
}

// The elements of the gradient, as real numbers.
torch::Tensor values_of(const torch::Tensor& gradient) {
  const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (values.scalar_type() == torch::kHalf)
    fail_usage("GradScaler: a gradient is of type half; keep the parameters in float and use Autocast");
  return values.is_complex() ? torch::view_as_real(values) : values;
}

// Multiplies the tensors. Returns whether a number was NaN or infinite before: one element, 0 or 1.
torch::Tensor multiply_and_check(std::vector<torch::Tensor> tensors, double factor, torch::Device device) {
  std::erase_if(tensors, [](const torch::Tensor& tensor) { return tensor.numel() == 0; });
  const auto options = torch::TensorOptions(torch::kFloat).device(device);
  torch::Tensor not_finite = torch::zeros({1}, options);
  if (!device.is_cpu()) {
    const auto others = std::stable_partition(
        tensors.begin(), tensors.end(),
        [](const torch::Tensor& tensor) { return tensor.scalar_type() == torch::kFloat; });
    const std::vector<torch::Tensor> floats(tensors.begin(), others);
    if (!floats.empty() && train::unscale(floats, torch::full({1}, factor, options), not_finite))
      tensors.erase(tensors.begin(), others);
  }
  // Such a number shows in the extremes; unlike isfinite() on a gradient, they need no copy of it.
  std::vector<torch::Tensor> extremes;
  for (const auto& tensor : tensors) {
    const auto [least, largest] = at::aminmax(tensor);
    extremes.push_back(least.to(torch::kDouble));
    extremes.push_back(largest.to(torch::kDouble));
  }
  if (!tensors.empty()) {
    not_finite += torch::stack(extremes).isfinite().all().logical_not();
    at::_foreach_mul_(tensors, factor);
  }
  return not_finite.gt(0).to(torch::kInt);
}

std::vector<torch::Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> gradients;
  SeenTensors seen;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      if (parameter.grad().defined() && seen.add(parameter)) gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

torch::Device device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return torch::kCPU;
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, torch::ScalarType type, bool enabled)
    : device_(checked(device, type)),
      enabled_before_(torch_compat::autocast_enabled(device)),
      type_before_(torch_compat::autocast_type(device)) {
  at::autocast::increment_nesting();
  torch_compat::set_autocast(device, enabled, type);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  torch_compat::set_autocast(device_, enabled_before_, type_before_);
}

GradScaler::GradScaler(World& world, const GradScalerOptions& options) : world_(world), options_(options) {
  if (!(options.growth_factor > 1))
    fail_usage("GradScaler: growth_factor is {}; it must be above 1", options.growth_factor);
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1))
    fail_usage("GradScaler: backoff_factor is {}; it must be between 0 and 1", options.backoff_factor);
  if (options.growth_interval < 1)
    fail_usage("GradScaler: growth_interval is {}; it must be at least 1", options.growth_interval);
  set_state({.scale = options.initial_scale});
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  if (!options_.enabled) return loss;
  const bool half = loss.scalar_type() == torch::kHalf || loss.scalar_type() == torch::kBFloat16;
  return (half ? loss.to(torch::kFloat) : loss) * state_.scale;
}

bool GradScaler::unscale_all(const void* optimizer, const std::vector<torch::Tensor>& gradients,
                             torch::Device device) {
  const auto [entry, added] = unscaled_.try_emplace(optimizer);
  if (!added)
    fail_usage(
        "GradScaler: unscale() or step() was called twice for the same optimizer; call update() between steps");
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> values;
  for (const auto& gradient : gradients) values.push_back(values_of(gradient));
  const torch::Tensor not_finite = multiply_and_check(std::move(values), 1 / state_.scale, device);
  ddp::communicator_for(world_, device)
      .all_reduce({not_finite.data_ptr(), 1, comm::DataType::i32}, "finite gradients",
                  {.op = comm::ReduceOp::max})
      ->wait();
  entry->second.finite = not_finite.item<std::int32_t>() == 0;  // the only call that waits for a device
  return entry->second.finite;
}

bool GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  return !options_.enabled || unscale_all(&optimizer, gradients_of(optimizer), device_of(optimizer));
}

bool GradScaler::unscale(DistributedOptimizerBase& optimizer) {
  return !options_.enabled || unscale_all(&optimizer, optimizer.gradients(), optimizer.device());
}

template <typename Optimizer>
bool GradScaler::step_with(Optimizer& optimizer) {
  if (options_.enabled) {
    if (!unscaled_.contains(&optimizer)) unscale(optimizer);
    Unscaled& unscaled = unscaled_.at(&optimizer);
    if (unscaled.stepped)
      fail_usage("GradScaler: step() was called twice for the same optimizer; call update() between steps");
    unscaled.stepped = true;
    if (!unscaled.finite) return false;
  }
  optimizer.step();
  return true;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step_with(optimizer);
}

bool GradScaler::step(DistributedOptimizerBase& optimizer) {
  return step_with(optimizer);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (unscaled_.empty())
    fail_usage("GradScaler: update() was called before any optimizer's unscale() or step()");
  bool finite = true;
  for (const auto& [optimizer, unscaled] : unscaled_) finite = finite && unscaled.finite;
  unscaled_.clear();
  if (!finite) {
    state_ = {.scale = state_.scale * options_.backoff_factor};
    world_.timer().add_skipped_step();
  } else if (++state_.good_steps >= options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    state_ = {.scale = std::isfinite(static_cast<float>(grown)) ? grown : state_.scale};
  }
  world_.timer().set_loss_scale(state_.scale);
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("scale", state_.scale);
  archive.write("good_steps", state_.good_steps);
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  set_state({.scale = value_in(archive, "scale").toDouble(),
             .good_steps = value_in(archive, "good_steps").toInt()});
}

void GradScaler::set_state(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale))
    fail_usage("GradScaler: the scale is {}; it must be a positive number", state.scale);
  state_ = state;
  if (options_.enabled) world_.timer().set_loss_scale(state_.scale);
}

}  // namespace lockstep
