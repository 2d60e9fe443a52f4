#include "runtime/ddp/buffer_broadcast.h"

#include <cstring>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"

namespace lockstep::ddp {
namespace {

void add_buffers(const torch::nn::Module& module, std::vector<torch::Tensor>& buffers) {
  for (auto& buffer : module.buffers(false)) {
    if (buffer.defined()) buffers.push_back(std::move(buffer));
  }
  for (const auto& child : module.children()) add_buffers(*child, buffers);
}

// Copies between a tensor and memory on its device.
void copy(const torch::Tensor& tensor, std::byte* memory, bool into_tensor) {
  if (tensor.is_cpu() && tensor.is_non_overlapping_and_dense()) {
    void* const data = tensor.data_ptr();
    std::memcpy(into_tensor ? data : memory, into_tensor ? memory : data, tensor.nbytes());
    return;
  }
  const torch::Tensor copied =
      torch::from_blob(memory, tensor.sizes(), tensor.options().requires_grad(false));
  if (into_tensor) {
    tensor.detach().copy_(copied);
  } else {
    copied.copy_(tensor);
  }
}

}  // namespace

std::vector<torch::Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> buffers;
  add_buffers(module, buffers);
  return buffers;
}

void BufferBroadcast::send(int root, const std::vector<torch::Tensor>& buffers) {
  if (communicator_.size() == 1 || buffers.empty()) return;
  const torch::NoGradGuard no_grad;
  std::size_t bytes = 0;
  for (const auto& buffer : buffers) bytes += bytes_in_bucket(buffer);
  if (bytes > bytes_) {
    const torch::Device device = buffers.front().device();
    if (device.is_cpu()) {
      memory_ = communicator_.allocate(bytes);
    } else {
      const auto block = device_block(device, bytes);
      memory_ = std::shared_ptr<void>(block.data_ptr(), [block](void* /*memory*/) {});
    }
    bytes_ = bytes;
  }
  const auto copy_all = [&](bool into_tensors) {
    auto* position = static_cast<std::byte*>(memory_.get());
    for (const auto& buffer : buffers) {
      copy(buffer, position, into_tensors);
      position += bytes_in_bucket(buffer);
    }
  };
  const bool sends = communicator_.rank() == root;
  if (sends) copy_all(false);
  const bool on_device = !buffers.front().is_cpu();
  if (on_device) {
    if (!on_device_)
      on_device_.emplace(clocks_of(buffers.front().device()), timer_, record::Collective::broadcast);
    on_device_->begin();
  }
  const comm::WorkHandle work = communicator_.broadcast({memory_.get(), bytes, comm::DataType::u8}, root,
                                                        fmt::format("{} buffers", buffers.size()));
  work->wait();
  if (on_device) {
    on_device_->end(bytes);
  } else {
    timer_.add_collective(record::Collective::broadcast, bytes, comm::duration_ns({&work, 1}));
  }
  if (!sends) copy_all(true);
}

}  // namespace lockstep::ddp
