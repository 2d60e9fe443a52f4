// A bucket: gradients of several parameters one after the other in one piece of the communicator's memory,
// each seen through a tensor of the parameter's shape. The memory lives as long as any of those tensors.
//
// Threads: the training thread; the memory belongs to the communicator while an operation runs on it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

/// The element type as ranks exchange it: of a complex number each part. Throws UsageError naming `what` for
/// one that cannot be reduced.
comm::DataType data_type_of(torch::ScalarType type, const std::string& what);

/// Bytes that a parameter's gradient takes in a bucket: whole cache lines, so that views are aligned.
std::size_t bytes_in_bucket(const torch::Tensor& parameter);

class FlatBucket {
 public:
  /// `parameters` have one element type and lie where the communicator's memory does.
  FlatBucket(comm::Communicator& communicator, std::string label,
             const std::vector<torch::Tensor>& parameters);

  /// The gradient of the i-th of the constructor's parameters, with the parameter's shape and, where it is
  /// dense, its strides.
  const torch::Tensor& view(std::size_t i) const { return views_[i]; }
  std::size_t size() const { return views_.size(); }
  const std::vector<torch::Tensor>& views() const { return views_; }

  /// All of it in one dimension, complex numbers as two real ones; between gradients there are zeros.
  const torch::Tensor& tensor() const { return tensor_; }

  comm::Buffer buffer() const { return buffer_; }
  const std::shared_ptr<void>& memory() const { return memory_; }
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  std::shared_ptr<void> memory_;
  comm::Buffer buffer_;
  torch::Tensor tensor_;
  std::vector<torch::Tensor> views_;
};

}  // namespace lockstep::ddp
