#include "runtime/train/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace lockstep::train {

std::optional<torch::Device> device_of(const std::vector<torch::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.is_cpu()) return tensor.device();
  }
  return std::nullopt;
}

std::vector<at::Generator> default_generators(std::optional<torch::Device> device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (device) generators.push_back(at::globalContext().defaultGenerator(*device));
  return generators;
}

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

RandomState::RandomState(std::vector<at::Generator> generators) : generators_(std::move(generators)) {
  for (const auto& generator : generators_) states_.push_back(state_of(generator));
}

void RandomState::restore() const {
  for (std::size_t i = 0; i < generators_.size(); ++i) set_state(generators_[i], states_[i]);
}

Rehearsal::Rehearsal(const torch::nn::Module& module)
    : random_(default_generators(device_of(module.parameters()))), buffers_(module.buffers()) {
  for (const auto& buffer : buffers_) kept_.push_back(buffer.detach().clone());
}

Rehearsal::~Rehearsal() {
  const torch::NoGradGuard no_grad;
  random_.restore();
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
}

}  // namespace lockstep::train
