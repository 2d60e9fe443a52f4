// Tells whether a tensor was seen before, for tensors that have several names (tied weights).
//
// Threads: a value; the caller synchronises.
#pragma once

#include <torch/torch.h>

#include <unordered_set>

namespace lockstep {

class SeenTensors {
 public:
  /// Returns false if the tensor was added before. A view or a copy of a tensor is another one.
  bool add(const torch::Tensor& tensor) { return seen_.insert(tensor.unsafeGetTensorImpl()).second; }

 private:
  std::unordered_set<const void*> seen_;
};

}  // namespace lockstep
