// The scope of a forward that must leave no trace: at its end, the random generators and the module's buffers
// (running statistics) are restored.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "runtime/train/random_state.h"

namespace lockstep::train {

class [[nodiscard]] Rehearsal {
 public:
  explicit Rehearsal(const torch::nn::Module& module);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

 private:
  RandomState random_;
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> kept_;  // the buffers' values
};

}  // namespace lockstep::train
