#include "runtime/train/rehearsal.h"

#include <optional>

namespace lockstep::train {
namespace {

std::optional<torch::Device> cuda_device_of(const torch::nn::Module& module) {
  std::optional<torch::Device> cuda;
  for (const auto& parameter : module.parameters()) {
    if (parameter.is_cuda()) cuda = parameter.device();
  }
  return cuda;
}

}  // namespace

Rehearsal::Rehearsal(const torch::nn::Module& module)
    : random_(default_generators(cuda_device_of(module))), buffers_(module.buffers()) {
  for (const auto& buffer : buffers_) kept_.push_back(buffer.detach().clone());
}

Rehearsal::~Rehearsal() {
  const torch::NoGradGuard no_grad;
  random_.restore();
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
}

}  // namespace lockstep::train
