#include "runtime/train/rehearsal.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <optional>

namespace lockstep::train {

Rehearsal::Rehearsal(const torch::nn::Module& module) : buffers_(module.buffers()) {
  std::optional<torch::Device> cuda;
  for (const auto& parameter : module.parameters()) {
    if (parameter.is_cuda()) cuda = parameter.device();
  }
  generators_.push_back(at::detail::getDefaultCPUGenerator());
  if (cuda) generators_.push_back(at::globalContext().defaultGenerator(*cuda));
  for (auto& generator : generators_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    random_.push_back(generator.get_state());
  }
  for (const auto& buffer : buffers_) kept_.push_back(buffer.detach().clone());
}

Rehearsal::~Rehearsal() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    const std::lock_guard<std::mutex> lock(generators_[i].mutex());
    generators_[i].set_state(random_[i]);
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
}

}  // namespace lockstep::train
