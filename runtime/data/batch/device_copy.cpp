#include "runtime/data/batch/device_copy.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>
#include <utility>

namespace lockstep::data {
namespace {

// The tensor in the copied bytes that corresponds to a host tensor in the buffer, in whatever order its dimensions are.
torch::Tensor on_device(const torch::Tensor& host, const BatchBuffer& buffer, const torch::Tensor& bytes) {
  if (!host.defined()) return host;
  if (host.numel() == 0) return torch::empty(host.sizes(), bytes.options().dtype(host.scalar_type()));
  const auto offset = static_cast<const std::byte*>(host.data_ptr()) - buffer.data();
  return bytes.narrow(0, offset, static_cast<std::int64_t>(host.nbytes()))
      .view(host.scalar_type())
      .as_strided(host.sizes(), host.strides());
}

// Makes the tensors of a batch of tokens that need not travel to the device: int64 tokens out of narrow ones (int16 stands
// for uint16), and from cu_seqlens the positions, the attention mask of padded batches, and the loss mask unless a transform
// has made it. The work goes to the calling thread's current stream; the host waits for nothing.
void complete_on_device(Batch& batch) {
  constexpr std::int64_t kWithoutSign = 0xffff;
  const bool unsigned_tokens = batch.tokens.scalar_type() == torch::kInt16;
  batch.tokens = batch.tokens.to(torch::kInt64);
  if (unsigned_tokens) batch.tokens.bitwise_and_(kWithoutSign);

  const auto options = batch.tokens.options();
  const torch::Tensor starts = batch.cu_seqlens.slice(0, 0, -1);
  const torch::Tensor lengths = batch.cu_seqlens.slice(0, 1) - starts;
  if (batch.tokens.dim() == 2) {  // padded
    batch.positions = torch::arange(batch.tokens.size(1), options).repeat({batch.tokens.size(0), 1});
    batch.attention_mask = batch.positions < lengths.unsqueeze(1);
    if (!batch.loss_mask.defined()) batch.loss_mask = batch.attention_mask & (batch.positions > 0);
    return;
  }
  // With the result's size LibTorch does not ask the device for it.
  const std::int64_t count = batch.tokens.size(0);
  batch.positions = torch::arange(count, options) - starts.repeat_interleave(lengths, 0, count);
  if (!batch.loss_mask.defined()) batch.loss_mask = batch.positions > 0;
}

}  // namespace

DeviceCopy::DeviceCopy(torch::Device device) : device_(device) {
  if (needed() && !device_.has_index()) device_ = c10::impl::VirtualGuardImpl(device_.type()).getDevice();
}

DeviceCopy::~DeviceCopy() {
  try {
    while (!in_progress_.empty()) {
      release_finished();
      if (!in_progress_.empty()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {  // a device that has failed reads no more
  }
}

void DeviceCopy::release_finished() {
  while (!in_progress_.empty() && in_progress_.front().done.query()) in_progress_.pop_front();
}

HostBatch DeviceCopy::begin(HostBatch host) {
  if (!needed() || !host.micro_batch.block) return host;
  const c10::impl::VirtualGuardImpl backend(device_.type());
  if (!stream_) stream_ = backend.getStreamFromGlobalPool(device_, false);
  release_finished();
  const c10::StreamGuard guard(*stream_);
  const torch::Tensor bytes =
      host.buffer->bytes().narrow(0, 0, static_cast<std::int64_t>(host.used)).to(device_, true);
  Batch& batch = host.batch;
  for (torch::Tensor* tensor : {&batch.tokens, &batch.positions, &batch.loss_mask, &batch.attention_mask,
                                &batch.cu_seqlens, &batch.images, &batch.targets, &batch.labels}) {
    *tensor = on_device(*tensor, *host.buffer, bytes);
  }
  if (batch.tokens.defined()) complete_on_device(batch);
  c10::Event done(device_.type());
  done.record(*stream_);
  in_progress_.push_back({std::move(done), std::move(host.buffer)});
  return host;
}

Batch DeviceCopy::finish(HostBatch copied) {
  if (!needed() || !copied.micro_batch.block) return std::move(copied.batch);
  const c10::Stream compute = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  in_progress_.back().done.block(compute);
  // The memory belongs to the pool of the copying stream, which must not reuse it while this stream works
  // on it.
  const Batch& batch = copied.batch;
  for (const torch::Tensor* tensor : {&batch.tokens, &batch.positions, &batch.loss_mask,
                                      &batch.attention_mask, &batch.cu_seqlens, &batch.images}) {
    if (tensor->defined()) tensor->record_stream(compute);
  }
  return std::move(copied.batch);
}

}  // namespace lockstep::data
