// The memory of a bucket: the gradients of several parameters one after the other, in one block. For each gradient there
// is a view with the parameter's shape. The memory lives as long as any view. On the CPU the communicator allocates it; on
// a device LibTorch's allocator does, and reuses it when the communicator's stream has ended its work on it too.
//
// Threads: the training thread. While an operation runs, the memory belongs to the communicator.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

/// The element type in which ranks exchange gradients; for a complex type, the type of its parts. Throws
/// UsageError naming `what` if the type cannot be reduced.
comm::DataType data_type_of(torch::ScalarType type, const std::string& what);

/// The element type in which ranks exchange and reduce this type; nullopt for complex and other types.
std::optional<comm::DataType> exchanged_as(torch::ScalarType type);

/// The bytes of a parameter's gradient in a bucket: whole cache lines, so that views are aligned.
std::size_t bytes_in_bucket(const torch::Tensor& parameter);

/// Zeroed bytes of a device. They are of LibTorch's allocator, which reuses them when the communicator's stream has ended its
/// work on them too.
torch::Tensor device_block(torch::Device device, std::size_t bytes);

class FlatBucket {
 public:
  /// `parameters` have one element type and are on the communicator's device.
  FlatBucket(comm::Communicator& communicator, std::string label,
             const std::vector<torch::Tensor>& parameters);

  /// The gradient of the constructor's i-th parameter, with the parameter's shape and, if the parameter is
  /// dense, its strides.
  const torch::Tensor& view(std::size_t i) const { return views_[i]; }
  std::size_t size() const { return views_.size(); }
  const std::vector<torch::Tensor>& views() const { return views_; }

  /// The whole bucket in one dimension, with zeros between gradients and after them, so that the ranks can cut it into equal
  /// parts; a complex number is two real ones.
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
