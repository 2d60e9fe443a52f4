#include "runtime/train/rehearsal.h"

namespace lockstep::train {
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
