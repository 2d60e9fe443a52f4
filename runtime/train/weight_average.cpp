#include "runtime/train/weight_average.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>

#include "common/error.h"
#include "runtime/archive.h"
#include "runtime/ddp/distributed_data_parallel.h"

namespace lockstep {
namespace {

// Bit by bit, so that a NaN equals itself.
bool same_bits(const torch::Tensor& left, const torch::Tensor& right) {
  constexpr std::array kIntegers = {torch::kChar, torch::kShort, torch::kInt, torch::kLong};
  const auto bits = kIntegers.at(static_cast<std::size_t>(std::log2(left.element_size())));
  return torch::equal(left.detach().view(bits), right.detach().view(bits));
}

}  // namespace

WeightAverage::WeightAverage(torch::nn::Module& module, double decay) : decay_(decay) {
  if (!(decay >= 0 && decay <= 1)) fail_usage("WeightAverage: decay is {}; it must be from 0 to 1", decay);
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters_of(module)) {
    if (!parameter.is_floating_point()) continue;
    weights_.push_back(parameter);
    // In 16 bits the small changes would be lost.
    const bool half = static_cast<std::size_t>(parameter.element_size()) < sizeof(float);
    averages_.push_back(parameter.detach().to(half ? torch::kFloat : parameter.scalar_type(), false, true));
  }
}

void WeightAverage::update() {
  refuse_swapped("update()");
  const torch::NoGradGuard no_grad;
  ++updates_;
  const auto count = static_cast<double>(updates_);
  const double decay = std::min(decay_, (1 + count) / (10 + count));
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    averages_[i].lerp_(weights_[i].detach().to(averages_[i].scalar_type()), 1 - decay);
  }
}

// Values are copied and tensors stay, because optimizers and DistributedDataParallel refer to them.
WeightAverage::Swapped::Swapped(WeightAverage& average)
    : average_(average), exceptions_(std::uncaught_exceptions()) {
  if (average.swapped_) fail_usage("WeightAverage: swap() was called twice; end the first scope first");
  average.swapped_ = true;
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < average.weights_.size(); ++i) {
    trained_.push_back(average.weights_[i].detach().clone());
    average.weights_[i].copy_(average.averages_[i]);
  }
}

WeightAverage::Swapped::~Swapped() noexcept(false) {
  const torch::NoGradGuard no_grad;
  bool changed = false;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const torch::Tensor& weights = average_.weights_[i];
    const torch::Tensor swapped_in = average_.averages_[i].to(weights.scalar_type());
    changed = changed || !same_bits(weights, swapped_in);
    weights.copy_(trained_[i]);
  }
  average_.swapped_ = false;
  if (changed && std::uncaught_exceptions() == exceptions_) {
    fail_usage(
        "WeightAverage: the weights were changed within the scope of swap(), and that change is lost; train only after the scope has ended");
  }
}

void WeightAverage::refuse_swapped(const char* call) const {
  if (swapped_)
    fail_usage("WeightAverage: {} was called while the module has the averages; end the swap() scope first",
               call);
}

void WeightAverage::save(torch::serialize::OutputArchive& archive) const {
  refuse_swapped("save()");
  archive.write("averages", c10::List<torch::Tensor>(averages_));
  archive.write("updates", updates_);
}

void WeightAverage::load(torch::serialize::InputArchive& archive) {
  refuse_swapped("load()");
  set_state(value_in(archive, "averages").toTensorVector(), value_in(archive, "updates").toInt());
}

void WeightAverage::set_state(const std::vector<torch::Tensor>& averages, std::int64_t updates) {
  if (averages.size() != averages_.size())
    fail("WeightAverage: the state has {} tensors, the module has {} parameters", averages.size(),
         averages_.size());
  for (std::size_t i = 0; i < averages.size(); ++i) {
    if (averages[i].sizes() != averages_[i].sizes()) {
      fail("WeightAverage: parameter {} has shape {}, and {} in the state", i,
           fmt::join(averages_[i].sizes(), " x "), fmt::join(averages[i].sizes(), " x "));
    }
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages.size(); ++i) averages_[i].copy_(averages[i]);
  updates_ = updates;
}

}  // namespace lockstep
